-- Language of texts for searches by words: `auto` or a text search configuration. Null for the deployment's; for a document,
-- which has the language of its ingestion rule, the project's.
alter table projects add column search_language text;
alter table ingestion_rules add column search_language text;
alter table documents add column search_language text;
-- Charset that was detected in a text file without one.
alter table documents add column charset text;

-- Tags of words in use, and the rows of a project with one of them.
create index document_chunks_words on document_chunks (tsv_config, project_id);
drop index document_chunks_config;
create index memories_words on memories (tsv_config, project_id) where tsv is not null;
drop index memories_config;

-- Returns a text search configuration by name, `simple` if it does not exist.
create function search_config(name text) returns regconfig language sql stable parallel safe as $$
  select coalesce(
    (select t.oid::regconfig
     from pg_ts_config t join pg_namespace n on n.oid = t.cfgnamespace
     where (t.cfgname = lower(name) and pg_ts_config_is_visible(t.oid)) or n.nspname || '.' || t.cfgname = lower(name)
     limit 1),
    'pg_catalog.simple')
$$;

-- Returns the words of a text with a lexeme of the project, which keeps an index scan within the project. Each line of
-- `words` is a weight, a configuration or `-`, a space, and words by their position; `zqxj` is none. Configurations of lines
-- apply if the language is `auto`. A tsvector holds at most 1 MiB of lexemes: larger lines are halved until they fit.
create function words_tsv(words text, language text, fallback text, project text) returns tsvector
language plpgsql stable parallel safe as $$
declare
  characters integer := 1048576;
  line text;
  named text;
  config regconfig;
  content text;
  part tsvector;
  result tsvector;
begin
  loop
    begin
      result := '';
      foreach line in array string_to_array(words, e'\n') loop
        named := split_part(substr(line, 2), ' ', 1);
        content := left(substr(line, length(named) + 3), characters);
        config := search_config(case when language <> 'auto' then language when named = '-' then fallback else named end);
        part := to_tsvector(config, content);
        if strpos(content, 'zqxj') > 0 then
          part := ts_delete(part, tsvector_to_array(to_tsvector(config, 'zqxj')));
        end if;
        if left(line, 1) <> 'D' then
          part := setweight(part, left(line, 1)::"char");
        end if;
        -- Concatenation would move the positions of the second tsvector.
        result := case when result = '' then part else (result::text || ' ' || part::text)::tsvector end;
      end loop;
      return result || array_to_tsvector(array['~p' || project]);
    exception when program_limit_exceeded then
      characters := characters / 2;
    end;
  end loop;
end
$$;

-- Returns the query for the forms of a search, separated by form feeds, of which one must match. A form consists of lines that
-- must all match: a command, a configuration, a tab and a text. Immutable, so that the planner evaluates it.
create function search_query(forms text) returns tsquery language plpgsql immutable parallel safe as $$
declare
  form text;
  line text;
  name text;
  config regconfig;
  content text;
  part tsquery;
  lines tsquery;
  result tsquery := '';
begin
  foreach form in array string_to_array(forms, e'\f') loop
    lines := '';
    foreach line in array string_to_array(form, e'\n') loop
      name := substr(split_part(line, e'\t', 1), 2);
      content := substr(line, length(name) + 3);
      config := case when name like '!%' then substr(name, 2)::regconfig else search_config(name) end;
      part := case left(line, 1)
        when 'q' then to_tsquery(config, content)
        when 'w' then websearch_to_tsquery(config, content)
        else phraseto_tsquery(config, content)
      end;
      lines := case when lines = '' then part else lines && part end;
    end loop;
    if lines <> '' and lines <> result then
      result := case when result = '' then lines else result || lines end;
    end if;
  end loop;
  return result;
end
$$;
