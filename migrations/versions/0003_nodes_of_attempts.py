"""The nodes of past attempts: `past_attempt.places`, the names that it refers to, and view `node_history`.

`places` has a row of three numbers for each node of a pod template: the template (`past_template.id`), the node
(`past_node.id`) and the pods. A name is stored once, however many attempts refer to it. The array is empty if no places
were known, and null if a release before this schema moved the attempt to history: its nodes are lost.
"""

from typing import Any

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

UP = """
CREATE TABLE public.past_node (
    id integer GENERATED ALWAYS AS IDENTITY,
    cluster text NOT NULL,
    name text NOT NULL,
    last_month date NOT NULL,
    CONSTRAINT pk_past_node PRIMARY KEY (id)
);
CREATE UNIQUE INDEX uq_past_node ON public.past_node (cluster, name);

CREATE TABLE public.past_template (
    id integer GENERATED ALWAYS AS IDENTITY,
    digest bytea NOT NULL,
    name text NOT NULL,
    requests jsonb NOT NULL,
    last_month date NOT NULL,
    CONSTRAINT pk_past_template PRIMARY KEY (id)
);
CREATE UNIQUE INDEX uq_past_template ON public.past_template (digest);

ALTER TABLE public.past_attempt ADD COLUMN places integer[];
CREATE INDEX ix_past_attempt_unplaced ON public.past_attempt (ended_at) WHERE (places IS NULL);

-- The places of an attempt in `cluster`. The order of the pod sets is that of the assignment. A pod set that leaves out
-- its item or its path has the first item, or no path.
CREATE FUNCTION public.places_of(assignment jsonb, pod_sets jsonb, cluster text)
RETURNS TABLE (template text, requests jsonb, node text, pods integer)
LANGUAGE sql IMMUTABLE PARALLEL SAFE ROWS 4
BEGIN ATOMIC
    SELECT coalesce(pod_set.value ->> 'item', '0') || '.' || coalesce(pod_set.value ->> 'path', ''),
           coalesce(smaller.requests, pod_set.value -> 'requests'), place.value ->> 0,
           least((place.value ->> 1)::numeric, 2147483647)::integer
    FROM jsonb_array_elements(places_of.assignment) WITH ORDINALITY AS planned(places, number)
    JOIN jsonb_array_elements(places_of.pod_sets -> 'sets') WITH ORDINALITY AS pod_set(value, number) USING (number)
    CROSS JOIN LATERAL jsonb_array_elements(planned.places) AS place(value)
    LEFT JOIN LATERAL (
        SELECT there.value -> 'requests' -> (number - 1)::integer AS requests
        FROM jsonb_array_elements(places_of.pod_sets -> 'smaller') AS there(value)
        WHERE there.value ->> 'cluster' = places_of.cluster
    ) AS smaller ON true;
END;

CREATE VIEW history.node_history AS
SELECT found.uid, found.namespace, found.name, found.queue, found.user_name, found.attempt, found.cluster,
       found.template, found.node, found.pods,
       CASE WHEN found.pods IS NULL THEN found.cpu ELSE found.pods * public.cores(found.requests) END AS cpu,
       CASE WHEN found.pods IS NULL THEN found.memory_gib ELSE found.pods * public.gibibytes(found.requests) END
           AS memory_gib,
       CASE WHEN found.pods IS NULL THEN found.gpu ELSE found.pods * public.gpus(found.requests) END AS gpu,
       found.decided_at, found.started_at, found.ended_at, found.outcome,
       (SELECT max(lost.ended_at) FROM public.past_attempt AS lost WHERE lost.places IS NULL) AS known_from
FROM (
    SELECT l.uid, l.namespace, l.name, l.queue, l.user_name, l.attempt, l.cluster, p.template, p.requests, p.node,
           p.pods, l.cpu, l.memory_gib, l.gpu, l.decided_at, l.started_at,
           -- A clock that was turned back; so that both are the bounds of a range, as in past_attempt.
           CASE WHEN l.ended_at < l.decided_at THEN l.decided_at ELSE l.ended_at END AS ended_at, l.outcome
    FROM public.attempt_live AS l
    JOIN public.attempt AS t ON t.uid = l.uid AND t.number = l.attempt
    JOIN public.appwrapper AS a ON a.uid = l.uid
    LEFT JOIN LATERAL public.places_of(t.assignment, a.pod_sets, t.cluster) AS p ON true
    UNION ALL
    SELECT t.uid, t.namespace, t.name, t.queue, t.user_name, t.attempt, t.cluster, template.name, template.requests,
           node.name, p.pods, t.cpu, t.memory_gib, t.gpu, t.decided_at, t.started_at, t.ended_at, t.outcome
    FROM public.past_attempt AS t
    LEFT JOIN LATERAL (
        SELECT t.places[i][1] AS template, t.places[i][2] AS node, t.places[i][3] AS pods
        FROM generate_subscripts(t.places, 1) AS i
    ) AS p ON true
    -- With OFFSET 0 each name is looked up by its index: a few attempts never read all names.
    LEFT JOIN LATERAL (
        SELECT name, requests FROM public.past_template WHERE id = p.template OFFSET 0
    ) AS template ON true
    LEFT JOIN LATERAL (SELECT name FROM public.past_node WHERE id = p.node OFFSET 0) AS node ON true
) AS found;

CREATE VIEW tenant.node_history WITH (security_barrier) AS
SELECT * FROM history.node_history
WHERE namespace IN (
    SELECT g.namespace FROM public.history_grant AS g JOIN pg_catalog.pg_roles AS r ON r.rolname = g.role_name
    WHERE pg_catalog.pg_has_role(current_user, r.oid, 'USAGE')
);

COMMENT ON TABLE public.past_node IS 'The names of the nodes of past attempts.';
COMMENT ON TABLE public.past_template IS 'The pod templates of past attempts, with the requests of one pod.';
COMMENT ON VIEW history.node_history IS
    'Which AppWrapper had places on which node: one row for each attempt, pod template and node. They are the places '
    'for which its pods were created, not the nodes that the scheduler of the cluster bound them to.'
"""

MEANINGS = {
    "uid": "The AppWrapper's metadata.uid.",
    "namespace": "Namespace of the AppWrapper.",
    "name": "Name of the AppWrapper.",
    "queue": "Name of the queue that the attempt was charged in.",
    "user_name": "Who submitted the AppWrapper; its namespace where nobody vouches for that.",
    "attempt": "Number of the attempt, from 1.",
    "cluster": "The cluster of the attempt.",
    "template": "The pod template: the index of the wrapped object and the path in it. Null where the node is.",
    "node": (
        "Name of the node; potential/POOL/NUMBER for a node that was still to come. Null, in the one row of its "
        "attempt, if no places are known."
    ),
    "pods": "Pods of the template that had their places on the node. Null where the node is.",
    "cpu": "Cores that these pods request; without a node, those of the demand of the attempt.",
    "memory_gib": "GiB of memory that these pods request; without a node, those of the demand.",
    "gpu": "Whole GPUs that these pods request; without a node, those of the demand. Slices are not counted.",
    "decided_at": "When the attempt was committed to the cluster: from then on it holds its places.",
    "started_at": "When all pods of the gang ran; null if that was not seen.",
    "ended_at": "When the attempt held nothing more; null while it does.",
    "outcome": "How the attempt ended; empty while it lives.",
    "known_from": (
        "The nodes of every attempt that ended later are kept. Of those that ended by then some are lost: an earlier "
        "release moved them to history. Null if none is lost."
    ),
}

DOWN = """
DROP VIEW tenant.node_history, history.node_history;
DROP FUNCTION public.places_of;
DROP INDEX public.ix_past_attempt_unplaced;
ALTER TABLE public.past_attempt DROP COLUMN places;
DROP TABLE public.past_node, public.past_template
"""


def upgrade() -> None:
    # The driver's connection takes several statements at once, and colons and percent signs unchanged.
    connection: Any = op.get_bind().connection.driver_connection
    connection.execute(UP)
    for schema in ("history", "tenant"):
        for column, meaning in MEANINGS.items():
            literal = meaning.replace("'", "''")
            connection.execute(f"COMMENT ON COLUMN {schema}.node_history.{column} IS '{literal}'")
    # The rights of tenants are set up after every migration (`store.readers.reader`).
    if connection.execute("SELECT FROM pg_roles WHERE rolname = 'dispatcher_reader'").fetchone() is not None:
        connection.execute("GRANT SELECT ON history.node_history TO dispatcher_reader")


def downgrade() -> None:
    connection: Any = op.get_bind().connection.driver_connection
    connection.execute(DOWN)
