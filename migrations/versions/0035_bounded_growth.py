"""The growth of an attempt is bounded: beyond 400 changes, the oldest are averaged over hours, days or months.

`appended_growth(growth, added)` appends changes. If there are more than 400 then, the latest 200 stay as they are. The
time before them is divided at whole hours (UTC) that have changes, and each part becomes one change with its average
amounts. So amounts times hours stay the same, as a whole and in each hour. If the changes are in more than 49 different
hours, the time is divided at days, else at months, else at centuries. At most 99 parts are left, so that one append in
a hundred does this. It takes as many steps as there are changes.
"""

from typing import Any

from alembic import op

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None

# A change lasts to the next one. It is cut at the end of its own part, and at the begin of the part of the next change;
# between the two is no change. Timestamps are without a zone here, in UTC: days have 24 hours in any session.
FUNCTION = """
CREATE FUNCTION appended_growth(growth jsonb, added jsonb) RETURNS jsonb
LANGUAGE sql STABLE STRICT PARALLEL SAFE
RETURN CASE
    WHEN jsonb_array_length(growth) + jsonb_array_length(added) <= 400 THEN growth || added
    ELSE (
        WITH step AS MATERIALIZED (
            SELECT value, place, place > count(*) OVER () - 200 AS is_kept,
                   (value ->> 'at')::timestamptz AT TIME ZONE 'UTC' AS since,
                   lead((value ->> 'at')::timestamptz AT TIME ZONE 'UTC') OVER (ORDER BY place) AS until
            FROM jsonb_array_elements(growth || added) WITH ORDINALITY AS each(value, place)
        ), older AS MATERIALIZED (
            SELECT * FROM step WHERE NOT is_kept AND until > since
        ), division AS MATERIALIZED (
            SELECT coalesce(
                (SELECT unit FROM (VALUES (1, 'hour'), (2, 'day'), (3, 'month')) AS units(size, unit)
                 WHERE (SELECT count(DISTINCT date_trunc(unit, since)) FROM older) <= 49
                 ORDER BY size LIMIT 1),
                'century') AS unit
        ), piece AS MATERIALIZED (
            SELECT date_trunc(unit, cut.since) AS part, cut.since, value -> 'amounts' AS amounts,
                   extract(epoch FROM cut.until - cut.since) AS seconds
            FROM older CROSS JOIN division
            CROSS JOIN LATERAL (
                SELECT date_trunc(unit, older.since) + ('1 ' || unit)::interval AS part_end,
                       date_trunc(unit, older.until) AS next_part
            ) AS bounds
            CROSS JOIN LATERAL (VALUES
                (older.since, least(older.until, part_end)),
                (part_end, next_part),
                (greatest(part_end, next_part), older.until)
            ) AS cut(since, until)
            WHERE cut.until > cut.since
        ), part AS (
            SELECT part, min(since) AS since, sum(seconds) AS seconds FROM piece GROUP BY part
        ), used AS (
            SELECT part, resource, sum(amount::numeric * seconds) AS amount
            FROM piece CROSS JOIN LATERAL jsonb_each_text(amounts) AS each(resource, amount)
            GROUP BY part, resource
        ), averaged AS (
            SELECT since, jsonb_build_object(
                'at', to_char(since, 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"'),
                'amounts', coalesce(
                    jsonb_object_agg(resource, trim_scale(round(amount / seconds, 6))) FILTER (WHERE amount <> 0),
                    '{}')) AS value
            FROM part LEFT JOIN used USING (part) GROUP BY part, since, seconds
        )
        SELECT coalesce((SELECT jsonb_agg(value ORDER BY since) FROM averaged), '[]')
               || (SELECT jsonb_agg(value ORDER BY place) FROM step WHERE is_kept)
    ) END
"""


def upgrade() -> None:
    _run(FUNCTION)


def downgrade() -> None:
    _run("DROP FUNCTION appended_growth(jsonb, jsonb)")


def _run(statement: str) -> None:
    # The driver's connection takes colons unchanged.
    connection: Any = op.get_bind().connection.driver_connection
    connection.execute(statement)
