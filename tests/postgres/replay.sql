-- Refuses a row of appwrapper that is not what its events come to. Tests have it in every database.
CREATE FUNCTION replayed(of_uid text) RETURNS appwrapper LANGUAGE sql STABLE AS $$
    SELECT jsonb_populate_record(NULL::appwrapper, coalesce(folded.columns, '{}') || jsonb_build_object('conditions', told.conditions))
    FROM (
        SELECT jsonb_object_agg(each.key, each.value ORDER BY id) AS columns
        FROM event, jsonb_each(change) AS each WHERE uid = of_uid
    ) AS folded, (
        SELECT coalesce(jsonb_agg(newest ORDER BY place), '[]') AS conditions
        FROM (
            SELECT (array_agg(each.value ORDER BY id DESC, each.place DESC))[1] AS newest,
                   min(ARRAY[id, each.place]) AS place
            FROM event, jsonb_array_elements(change -> 'conditions') WITH ORDINALITY AS each(value, place)
            WHERE uid = of_uid AND change ? 'conditions'
            GROUP BY each.value ->> 'type'
        ) AS by_type
    ) AS told
$$;

CREATE FUNCTION check_replay() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    others CONSTANT text[] := ARRAY['uid', 'api_group', 'namespace', 'name', 'enqueue_seq', 'updated_at',
                                    'taken_in_at', 'first_queued_at', 'ended_at', 'outcome', 'last_event_at'];
    kept appwrapper;
    times record;
    wrong text;
BEGIN
    SELECT * INTO kept FROM appwrapper WHERE uid = NEW.uid;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    SELECT string_agg(f.key || ': ' || coalesce(r.value::text, 'nothing') || ' is replayed, the row has ' || f.value, '; ')
    INTO wrong
    FROM jsonb_each(to_jsonb(kept) - others) AS f
    LEFT JOIN jsonb_each(to_jsonb(replayed(NEW.uid)) - others) AS r USING (key)
    WHERE r.value IS DISTINCT FROM f.value;
    SELECT (array_agg(at ORDER BY id))[1] AS taken_in_at,
           (array_agg(at ORDER BY id) FILTER (WHERE to_phase = 'Queued'))[1] AS first_queued_at,
           (array_agg(at ORDER BY id) FILTER (WHERE to_phase IN ('Completed', 'Failed', 'Deleted')))[1] AS ended_at,
           (array_agg(at ORDER BY id DESC))[1] AS last_event_at,
           (array_agg(to_phase ORDER BY id DESC))[1] AS phase
    INTO times FROM event WHERE uid = NEW.uid;
    IF wrong IS NULL
       AND (times.taken_in_at, times.first_queued_at, times.ended_at, times.last_event_at, times.phase)
           IS DISTINCT FROM (kept.taken_in_at, kept.first_queued_at, kept.ended_at, kept.last_event_at, kept.phase) THEN
        wrong := format('the events have %s, the row (%s,%s,%s,%s,%s)', times, kept.taken_in_at, kept.first_queued_at,
                        kept.ended_at, kept.last_event_at, kept.phase);
    END IF;
    IF wrong IS NOT NULL THEN
        RAISE integrity_constraint_violation USING MESSAGE = format('%s/%s is not what its events say: %s',
                                                                    kept.namespace, kept.name, wrong);
    END IF;
    RETURN NULL;
END
$$;

CREATE CONSTRAINT TRIGGER replay AFTER INSERT OR UPDATE ON appwrapper DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION check_replay();
