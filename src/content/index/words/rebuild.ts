import { z } from 'zod'
import type { Services } from '#core/base/services.ts'
import { countStatement, type Fragment, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import { type Queue, queueMessage } from '#core/queues/queue.ts'
import { type BackgroundTask, type JobContext, RequeueError } from '#core/work/handler.ts'
import { searchLanguageChannel } from '#identity/projects/search-language.ts'
import { ownsSettings } from '../embeddings/settings-owner.ts'
import { indexTexts } from './index-text.ts'
import { distinctTags, isOutdated, resolveTextSearchConfig, wordsLanguageExpr, wordsSetting } from './languages.ts'

const BATCH = 200
const REPORT_MS = 10_000
/** Characters of the texts of a batch; a batch has at least one text. */
const BATCH_CHARACTERS = 1_000_000

/** Table of rows with words. */
export type WordsTable = {
  name: 'document_chunks' | 'memories'
  /** Own language of a row `c`; null if rows have none. */
  own: Fragment
}

export const chunkWords: WordsTable = {
  name: 'document_chunks',
  own: sql.fragment`(select d.search_language from documents d where d.id = c.document_id)`,
}

const Group = z.object({ tag: z.string(), project_id: z.string(), search_language: z.string().nullable() })
const groupRow = sql.type(Group)
const textRow = sql.type(z.object({ id: z.string(), version: z.string(), content: z.string() }))

/** Rows of a project with the same tag. */
type Group = z.output<typeof Group>

/**
 * Returns the groups of rows whose words are of an earlier release or of another language. Indexes document_chunks_words,
 * memories_words: one probe per project and tag.
 */
async function outdatedGroups(db: Queryable, { name }: WordsTable, fallback: string): Promise<Group[]> {
  const table = sql.identifier([name])
  const groups = await db.any(groupRow`
    with recursive groups as (
      (select tag, '' as project_id from (${distinctTags(name)}) t)
      union all
      select g.tag, (
        select c.project_id from ${table} c
        where c.tsv is not null and c.tsv_config = g.tag and c.project_id > g.project_id order by c.project_id limit 1)
      from groups g where g.project_id is not null
    )
    select g.tag, g.project_id, p.search_language from groups g join projects p on p.id = g.project_id`)
  return groups.filter(({ tag, search_language }) => isOutdated(tag, search_language, fallback))
}

const inGroup = ({ tag, project_id }: Group): Fragment =>
  sql.fragment`c.tsv is not null and c.tsv_config = ${tag} and c.project_id = ${project_id}`

/** Counts the chunks with outdated words that match a condition over the alias `c`. */
export async function countOutdatedChunks(services: Services, visible: Fragment): Promise<number> {
  const { pool, config } = services
  const fallback = await resolveTextSearchConfig(pool, config.KNOWLEDGE_TEXT_SEARCH_CONFIG)
  const groups = await outdatedGroups(pool, chunkWords, fallback)
  if (groups.length === 0) return 0
  return pool.oneFirst(countStatement`
    select count(*) from ${sql.unnest(
      groups.map(({ tag, project_id }) => [tag, project_id]),
      ['text', 'text'],
    )} as g (tag, project_id)
    join document_chunks c on c.tsv_config = g.tag and c.project_id = g.project_id
    where ${visible}`)
}

/**
 * Rebuilds outdated words of a table, a batch of each project in turn, unless a worker with another setting started later.
 * Progress is in the tags of the rows, so that a pass may end anywhere. Throws RequeueError when the worker stops.
 */
export async function rebuildWords(
  services: Services,
  table: WordsTable,
  { stopping, log }: Pick<JobContext, 'stopping' | 'log'>,
  until: number,
): Promise<'done' | 'more'> {
  const { pool, config } = services
  const fallback = await resolveTextSearchConfig(pool, config.KNOWLEDGE_TEXT_SEARCH_CONFIG)
  const groups = await outdatedGroups(pool, table, fallback)
  const pending = new Set(groups)
  let rebuilt = 0
  let reported = performance.now()
  const report = () => {
    reported = performance.now()
    const progress = { rebuilt, projects: groups.length - pending.size, of_projects: groups.length }
    log.info({ table: table.name, config: fallback, ...progress }, 'search words rebuilt')
  }
  while (pending.size > 0) {
    for (const group of pending) {
      if (!(await ownsSettings(services, 'text_search_config', wordsSetting(fallback)))) {
        log.info({ table: table.name, config: fallback, rebuilt }, 'text search configuration changed, rebuild stopped')
        return 'done'
      }
      const count = await rebuildBatch(pool, table, group, config.KNOWLEDGE_TEXT_SEARCH_CONFIG)
      if (count === 0) pending.delete(group)
      rebuilt += count
      if (stopping.aborted) throw new RequeueError('the worker stops')
      if (performance.now() - reported > REPORT_MS) report()
      if (performance.now() > until) {
        report()
        return 'more'
      }
    }
  }
  if (rebuilt > 0) report()
  return 'done'
}

/**
 * Rebuilds the words of some rows of a group, except locked and concurrently changed ones; returns their number. A language that
 * was changed back meanwhile is the group's own: its rows would be rebuilt without end.
 */
async function rebuildBatch(db: Queryable, table: WordsTable, group: Group, deployment: string): Promise<number> {
  const name = sql.identifier([table.name])
  const texts = await db.any(textRow`
    select id, version, content from (
      select c.id, c.xmin::text as version, c.content, sum(length(c.content)) over (rows unbounded preceding) as characters,
        row_number() over () as number
      from (select c.xmin, c.* from ${name} c where ${inGroup(group)} limit ${BATCH}) c
    ) c
    where number = 1 or characters <= ${BATCH_CHARACTERS}`)
  if (texts.length === 0) return 0
  const words = await indexTexts(texts.map(({ content }) => content))
  const { rowCount } = await db.query(voidStatement`
    update ${name} c set tsv = n.tsv, tsv_config = n.tag
    from (
      select c.id, words_tsv(r.words, l.language, l.fallback, c.project_id) as tsv, l.tag
      from ${name} c
      join ${sql.unnest(
        texts.map(({ id, version }, index) => [id, version, words[index]]),
        ['text', 'text', 'text'],
      )} as r (id, version, words) on r.id = c.id
      cross join lateral (${wordsLanguageExpr(table.own, sql.fragment`c.project_id`, deployment)}) l
      where c.xmin::text = r.version
      for update of c skip locked
    ) n
    where c.id = n.id and n.tag <> ${group.tag}`)
  return rowCount
}

/** Task that sends a message to a queue when the language of a project changes. */
export const sendOnLanguageChange = (name: string, queue: Queue<Record<string, never>>): BackgroundTask => ({
  name,
  concern: 'ingestion',
  start({ notifications, queues, log }) {
    const unlisten = notifications.listen(searchLanguageChannel, project => {
      if (project === '') return
      queues.send([queueMessage(queue, {})]).catch(error => log.error({ err: error }, 'reindex check failed'))
    })
    return { close: async () => unlisten() }
  },
})
