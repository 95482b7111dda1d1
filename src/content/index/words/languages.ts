import { z } from 'zod'
import { processSingleton } from '#core/base/process-singleton.ts'
import type { Services } from '#core/base/services.ts'
import { NotifiedCache } from '#core/db/notified-cache.ts'
import { type Fragment, type Queryable, sql } from '#core/db/sql.ts'
import { searchLanguageChannel } from '#identity/projects/search-language.ts'

/**
 * The words of a row have a tag in its column `tsv_config`: the language and the format of words, such as `german/2`, and
 * `/own` if the language is the document's own. Rows of earlier releases have the name of a configuration, with which
 * PostgreSQL parsed their text.
 */
const FORMAT = '/2'
const OWN = '/own'
/** Followed by the configuration for scripts of many languages. */
const AUTO = 'auto:'

type WordsTag = {
  language: string
  /** Whether the row has words of an earlier release. */
  isEarlier: boolean
  /** Whether the language is the document's own instead of the project's. */
  isOwn: boolean
}

function parseTag(tag: string): WordsTag {
  const isOwn = tag.endsWith(FORMAT + OWN)
  const name = isOwn ? tag.slice(0, -OWN.length) : tag
  if (!name.endsWith(FORMAT)) return { language: tag, isEarlier: true, isOwn: false }
  return { language: name.slice(0, -FORMAT.length), isEarlier: false, isOwn }
}

/** Whether rows of a project with a tag need new words. `fallback` is the configuration of the deployment. */
export function isOutdated(tag: string, projectLanguage: string | null, fallback: string): boolean {
  const { language, isEarlier, isOwn } = parseTag(tag)
  if (isEarlier) return true
  if (isOwn) return language.startsWith(AUTO) && language !== AUTO + fallback
  return language !== languageName(projectLanguage ?? fallback, fallback)
}

const languageName = (language: string, fallback: string): string => (language === 'auto' ? AUTO + fallback : language)

/** Returns the configuration for words of a script in a language. */
export const configOf = (language: string, script: string | null): string =>
  language.startsWith(AUTO) ? (script ?? language.slice(AUTO.length)) : language

/** Query for a text search configuration by name, resolved like in PostgreSQL; `simple` if it does not exist. */
const textSearchConfigExpr = (name: string) => sql.fragment`
  select f.config, f.name
  from (
    select t.oid::regconfig as config, ${name} as name, 0 as rank
    from pg_ts_config t join pg_namespace n on n.oid = t.cfgnamespace
    where (t.cfgname = lower(${name}) and pg_ts_config_is_visible(t.oid))
      or n.nspname || '.' || t.cfgname = lower(${name})
    union all select 'simple', 'simple', 1
  ) f
  order by f.rank limit 1`

const configRow = sql.type(z.object({ config: z.unknown(), name: z.string() }))

/** Returns the text search configuration of this database for a name, or `simple` if it does not exist. */
export const resolveTextSearchConfig = async (db: Queryable, name: string): Promise<string> =>
  (await db.one(configRow`${textSearchConfigExpr(name)}`)).name

/** Setting of the deployment by which words are built. A worker of an earlier release does not own it. */
export const wordsSetting = (config: string): string => config + FORMAT

/**
 * Query for the language of the words of a row, the configuration of the deployment as `fallback`, and the tag: the own
 * language of the row, else the language of its project, else the deployment's.
 */
export const wordsLanguageExpr = (own: Fragment, projectId: Fragment, deployment: string): Fragment => sql.fragment`
  select l.language, l.fallback,
    case when l.language = 'auto' then ${AUTO} || l.fallback else l.language end || ${FORMAT}
      || case when l.own then ${OWN} else '' end as tag
  from (
    select coalesce(${own}, (select p.search_language from projects p where p.id = ${projectId}), k.name) as language,
      k.name as fallback, ${own} is not null as own
    from (${textSearchConfigExpr(deployment)}) k
  ) l`

/** Languages in which the texts of a project may be indexed; `earlier`: configurations of words of earlier releases. */
export type SearchLanguages = { languages: readonly string[]; earlier: readonly string[] }

const ALL_PROJECTS = ''
const MAX_AGE_MS = 30_000

const row = sql.type(z.object({ project_id: z.string(), tags: z.array(z.string()), chosen: z.array(z.string()) }))

/** Query for the distinct tags of a table: one step of its index per tag. */
export const distinctTags = (table: 'document_chunks' | 'memories'): Fragment => {
  const rows = sql.identifier([table])
  const present = sql.fragment`c.tsv is not null`
  return sql.fragment`
    with recursive t as (
      (select c.tsv_config as tag from ${rows} c where ${present} order by c.tsv_config limit 1)
      union all
      select (select c.tsv_config from ${rows} c where ${present} and c.tsv_config > t.tag order by c.tsv_config limit 1)
      from t where t.tag is not null
    )
    select tag from t where tag is not null`
}

/**
 * Cache of the languages of projects: the languages of their rows, and the choices of project and ingestion rules for
 * new rows. Indexes document_chunks_words, memories_words: one probe per tag in use.
 */
const languagesCache = processSingleton(
  ({ notifications, pool, config }: Services) =>
    new NotifiedCache<SearchLanguages>(notifications, {
      channel: searchLanguageChannel,
      maxAgeMs: MAX_AGE_MS,
      load: async keys => {
        const found = await pool.any(row`
          with chunk_tags as materialized (${distinctTags('document_chunks')}),
            memory_tags as materialized (${distinctTags('memories')})
          select k.id as project_id,
            array(
              select t.tag from chunk_tags t
              where k.id = ${ALL_PROJECTS} or exists (select from document_chunks c where c.tsv_config = t.tag and c.project_id = k.id)
              union
              select t.tag from memory_tags t
              where k.id = ${ALL_PROJECTS} or exists (
                select from memories m where m.tsv is not null and m.tsv_config = t.tag and m.project_id = k.id)
            ) as tags,
            array(
              select p.search_language from projects p
              where p.search_language is not null and (p.id = k.id or k.id = ${ALL_PROJECTS})
              union
              select r.search_language from ingestion_rules r
              where r.search_language is not null and (r.project_id = k.id or k.id = ${ALL_PROJECTS})
            ) as chosen
          from unnest(${sql.array(keys, 'text')}) k (id)`)
        const byProject = new Map(found.map(entry => [entry.project_id, entry]))
        const deployment = config.KNOWLEDGE_TEXT_SEARCH_CONFIG
        return keys.map(key => {
          const { tags = [], chosen = [] } = byProject.get(key) ?? {}
          const parsed = tags.map(parseTag)
          const languages = [
            deployment,
            ...chosen.map(language => languageName(language, deployment)),
            ...parsed.filter(tag => !tag.isEarlier).map(tag => tag.language),
          ]
          const earlier = parsed.filter(tag => tag.isEarlier).map(tag => tag.language)
          return { languages: [...new Set(languages)], earlier }
        })
      },
    }),
  cache => cache.close(),
)

/** Returns the languages of a project, or of all projects, cached in the process. */
export const findSearchLanguages = async (services: Services, project: string | null): Promise<SearchLanguages> =>
  languagesCache(services).get(project ?? ALL_PROJECTS)
