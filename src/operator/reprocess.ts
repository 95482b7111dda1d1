import { nodeExecutionQueue, runQueue, runWakeQueue } from '#automation/orchestrations/runs/queue.ts'
import { wakeFiring } from '#automation/triggers/fire.ts'
import { refireTrigger } from '#automation/triggers/store.ts'
import { embedDocuments } from '#content/index/embeddings/embed-documents.ts'
import { ownsSettings } from '#content/index/embeddings/settings-owner.ts'
import { currentSpace, type Space } from '#content/index/embeddings/space.ts'
import { restartIngestion } from '#content/ingestion/start-ingestion.ts'
import { foldProject } from '#control/usage/folds.ts'
import { rebuildSums, sumsMatchEvents, usageDays } from '#control/usage/rebuild.ts'
import { notifyWorkers } from '#control/webhooks/operations.ts'
import { insertRedeliveries } from '#control/webhooks/store.ts'
import { conversationQueue } from '#conversation/dialog/mailbox/mailbox.ts'
import { AppError } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import { queueMessage } from '#core/queues/queue.ts'
import { works } from '#core/work/work.ts'
import { turnQueue } from '#execution/generations/request/create.ts'
import { callerForPrincipal } from '#identity/principals/principals.ts'
import { embedMemories } from '#memory/facts/embed-memories.ts'
import { contentHash } from '#memory/facts/hash.ts'
import { lockUnchanged, recomputeDerived } from '#memory/facts/store.ts'
import { withCellServices } from './cell-services.ts'
import { CommandError, print, printJson, printProgress } from './output.ts'
import {
  countDeliveries,
  countDocuments,
  countFirings,
  countMemories,
  findFirstAdmin,
  listNextDocuments,
  listNextMemories,
  listRunsWithoutMessage,
  listTurnsWithoutMessage,
  lockDeliveries,
  lockFirings,
  type OrphanedRun,
  type OrphanedTurn,
} from './store.ts'

export type ReprocessFilters = {
  data: string
  cell: string
  project?: string
  from?: Date
  to?: Date
  limit?: number
  id: string[]
  dryRun?: boolean
  json?: boolean
}

const BATCH = 500
const MAX_TURNS = 100_000
const MAX_ITEMS = 100_000
const DOCUMENT_BATCH = 50
const MEMORY_BATCH = 64

const toFilter = ({ project, from, to, id }: ReprocessFilters) => ({
  project: project ?? null,
  from: from ?? null,
  to: to ?? null,
  ids: id,
})

/** `muster reprocess deliveries`: resends deliveries in batches, one transaction per batch. */
export const reprocessDeliveries = (
  options: ReprocessFilters & { webhook?: string; status: 'failed' | 'completed' },
): Promise<void> =>
  withCellServices(options, async services => {
    const filter = { ...toFilter(options), webhook: options.webhook ?? null, status: options.status }
    const found = Math.min(await countDeliveries(services.pool, filter), options.limit ?? Infinity)
    let redelivered = 0
    let after = ''
    while (!options.dryRun && redelivered < found) {
      const batch = await services.write(async tx => {
        const deliveries = await lockDeliveries(tx, filter, after, Math.min(BATCH, found - redelivered))
        if (deliveries.length === 0) return null
        const count = await insertRedeliveries(
          tx,
          deliveries.map(({ id }) => id),
        )
        const webhooks = new Map(deliveries.map(({ webhook_id, project_id }) => [webhook_id, project_id]))
        for (const [id, project_id] of webhooks) notifyWorkers(tx, { id, project_id })
        return { count, last: deliveries[deliveries.length - 1].id }
      })
      if (!batch) break
      redelivered += batch.count
      after = batch.last
      printProgress(`${redelivered} of ${found} deliveries queued`)
    }
    if (options.json) printJson({ found, redelivered, dry_run: options.dryRun === true })
    else if (options.dryRun) print(`${found} deliveries would be resent`)
    else print(`${redelivered} deliveries queued for resending`)
  })

/** `muster reprocess generations`: sends missing wake-ups of turns. A duplicate wake-up has no effect. */
export const reprocessGenerations = (
  options: ReprocessFilters & { status?: 'pending' | 'in_progress' },
): Promise<void> =>
  withCellServices(options, async ({ pool, queues }) => {
    const orphaned = await listTurnsWithoutMessage(
      pool,
      { ...toFilter(options), status: options.status ?? null },
      { turn: turnQueue.name, conversation: conversationQueue.name },
      options.limit ?? MAX_TURNS,
    )
    for (let start = 0; !options.dryRun && start < orphaned.length; start += BATCH) {
      const batch = orphaned.slice(start, start + BATCH)
      await queues.send(batch.map(turnWakeUp))
      printProgress(`${start + batch.length} of ${orphaned.length} turns woken`)
    }
    const woken = options.dryRun ? 0 : orphaned.length
    if (options.json)
      printJson({
        found: orphaned.length,
        woken,
        dry_run: options.dryRun === true,
        generations: orphaned.map(({ id, status }) => ({ id, status })),
      })
    else if (options.dryRun) print(`${orphaned.length} turns would be woken`)
    else print(`${woken} turns woken`)
  })

/**
 * `muster reprocess firings`: repeats failed firings as new firings with the same input and trigger chain, or sends
 * missing wake-ups of pending ones. A firing is repeated only once.
 */
export const reprocessFirings = (
  options: ReprocessFilters & { trigger?: string; status: 'failed' | 'pending' },
): Promise<void> =>
  withCellServices(options, async services => {
    const filter = { ...toFilter(options), trigger: options.trigger ?? null, status: options.status }
    const found = Math.min(await countFirings(services.pool, filter), options.limit ?? Infinity)
    let fired = 0
    let after = ''
    while (!options.dryRun && fired < found) {
      const batch = await services.write(async tx => {
        const firings = await lockFirings(tx, filter, after, Math.min(BATCH, found - fired))
        const repeated = options.status === 'failed' ? await refireTrigger(tx, firings) : firings
        for (const firing of repeated) wakeFiring(tx, firing)
        return firings
      })
      if (batch.length === 0) break
      fired += batch.length
      after = batch[batch.length - 1].id
      printProgress(`${fired} of ${found} firings queued`)
    }
    if (options.json) printJson({ found, fired, dry_run: options.dryRun === true })
    else if (options.dryRun) print(`${found} firings would be repeated`)
    else print(`${fired} firings queued`)
  })

/**
 * `muster reprocess runs`: sends missing wake-ups of runs that can advance, and of orphaned node executions. A
 * duplicate wake-up has no effect.
 */
export const reprocessRuns = (options: ReprocessFilters): Promise<void> =>
  withCellServices(options, async ({ pool, queues }) => {
    const orphaned = await listRunsWithoutMessage(
      pool,
      toFilter(options),
      { run: runQueue.name, wake: runWakeQueue.name, node: nodeExecutionQueue.name },
      options.limit ?? MAX_TURNS,
    )
    const ids = [...new Set(orphaned.map(({ id }) => id))]
    for (let start = 0; !options.dryRun && start < orphaned.length; start += BATCH) {
      const batch = orphaned.slice(start, start + BATCH)
      await queues.send(batch.map(runWakeUp))
      printProgress(`${start + batch.length} of ${orphaned.length} wake-ups sent`)
    }
    const woken = options.dryRun ? 0 : ids.length
    if (options.json) printJson({ found: ids.length, woken, dry_run: options.dryRun === true, runs: ids })
    else if (options.dryRun) print(`${ids.length} runs would be woken`)
    else print(`${woken} runs woken`)
  })

const runWakeUp = ({ id: run_id, project_id, execution_id }: OrphanedRun) =>
  execution_id === null
    ? queueMessage(runQueue, { run_id, project_id })
    : queueMessage(nodeExecutionQueue, { execution_id, run_id, project_id })

const turnWakeUp = ({ id, project_id, conversation_id }: OrphanedTurn) =>
  conversation_id === null
    ? queueMessage(turnQueue, { generation_id: id, project_id })
    : queueMessage(conversationQueue, { conversation_id, project_id })

/**
 * `muster reprocess ingestions`: restarts the ingestion of documents, each in a separate transaction, with the
 * permissions of the first admin. Refused documents are skipped and reported.
 */
export const reprocessIngestions = (options: ReprocessFilters & { status: 'failed' | 'ready' }): Promise<void> =>
  withCellServices(options, async services => {
    const filter = { ...toFilter(options), status: options.status, missing: null }
    const found = Math.min(await countDocuments(services.pool, filter), options.limit ?? Infinity)
    const admin = await findFirstAdmin(services.pool)
    if (!admin && found > 0)
      throw new CommandError('no admin exists whose permissions could be used', 'Run muster bootstrap.')
    const refused: { id: string; code: string }[] = []
    let queued = 0
    for (let below: string | null = null; !options.dryRun && queued + refused.length < found; ) {
      const documents = await listNextDocuments(
        services.pool,
        filter,
        below,
        Math.min(DOCUMENT_BATCH, found - queued - refused.length),
      )
      if (documents.length === 0) break
      below = documents[documents.length - 1].id
      for (const { id, project_id } of documents) {
        const caller = await callerForPrincipal(
          services,
          { type: 'user', id: (admin as { id: string }).id, via: null },
          project_id,
        )
        if (!caller) throw new CommandError('the first admin is disabled')
        try {
          await services.write(tx => restartIngestion({ services, tx, caller, wait: false }, id, {}))
          queued++
        } catch (error) {
          if (!(error instanceof AppError)) throw error
          refused.push({ id, code: error.code })
          printProgress(`${id}: ${error.message}`)
        }
      }
      printProgress(`${queued + refused.length} of ${found} documents checked, ${queued} queued`)
    }
    if (options.json) printJson({ found, queued, refused, dry_run: options.dryRun === true })
    else if (options.dryRun) print(`${found} documents would be ingested again`)
    else print(`${queued} documents queued for ingestion`)
  })

/**
 * `muster reprocess embeddings`: embeds documents in this process, a page at a time. The old vectors of a document are
 * used until the new ones are stored.
 */
export const reprocessEmbeddings = (options: ReprocessFilters & { missing?: boolean }): Promise<void> =>
  withCellServices(options, async services => {
    const space = await requireDeployedSpace(services)
    if (!space) throw new CommandError('embeddings are not configured', 'Set EMBEDDING_PROVIDER and EMBEDDING_MODEL.')
    const filter = { ...toFilter(options), status: null, missing: options.missing ? space.id : null }
    const found = Math.min(await countDocuments(services.pool, filter), options.limit ?? Infinity)
    const total = { documents: 0, embedded: 0, failed: 0 }
    const { signal } = new AbortController()
    for (let below: string | null = null; !options.dryRun && total.documents < found; ) {
      const documents = await listNextDocuments(
        services.pool,
        filter,
        below,
        Math.min(DOCUMENT_BATCH, found - total.documents),
      )
      if (documents.length === 0) break
      below = documents[documents.length - 1].id
      const { embedded, failed, down } = await embedDocuments(services, space, documents, {
        signal,
        again: !options.missing,
      })
      if (down) throw providerDownError(`${total.documents} of ${found} documents`)
      total.documents += documents.length
      total.embedded += embedded
      total.failed += failed
      printProgress(
        `${total.documents} of ${found} documents, ${total.embedded} chunks embedded, ${total.failed} failed`,
      )
    }
    const { embedded, failed } = total
    if (options.json)
      printJson({ found, embedded_chunks: embedded, failed_chunks: failed, dry_run: options.dryRun === true })
    else if (options.dryRun) print(`${found} documents would be embedded again`)
    else print(`${embedded} chunks of ${total.documents} documents embedded, ${failed} failed`)
  })

/**
 * `muster reprocess work`: wakes overdue items of durable work that have no message, as the sweeps of the workers do. A
 * duplicate wake-up has no effect.
 */
export const reprocessWork = (
  options: Pick<ReprocessFilters, 'data' | 'cell' | 'limit' | 'dryRun' | 'json'> & { kind?: string },
): Promise<void> =>
  withCellServices(options, async services => {
    const dryRun = options.dryRun === true
    const names = works.all().map(({ name }) => name)
    const { kind } = options
    if (kind !== undefined && !works.find(kind))
      throw new CommandError(`no kind of work is called ${kind}`, `Choose one of ${names.join(', ')}.`)
    const kinds: { kind: string; found: number }[] = []
    const limit = options.limit ?? MAX_ITEMS
    let found = 0
    for (const work of kind === undefined ? works.all() : [works.get(kind)]) {
      const count = await work.wakeOverdue(services, { limit: limit - found, dryRun })
      kinds.push({ kind: work.name, found: count })
      found += count
      if (found === limit) break
    }
    if (options.json) printJson({ found, woken: dryRun ? 0 : found, dry_run: dryRun, kinds })
    else if (dryRun) print(`${found} items of work would be woken`)
    else print(`${found} items of work woken`)
  })

const DAY_MS = 86_400_000

/**
 * `muster reprocess usage`: recomputes usage totals that differ from the usage events, one day of a project at a time.
 * Writes of usage of all projects wait meanwhile, some hundredths of a second for each day.
 */
export const reprocessUsage = (options: Omit<ReprocessFilters, 'id'>): Promise<void> =>
  withCellServices(options, async services => {
    const days = await usageDays(services.pool, toFilter({ ...options, id: [] }))
    let differing = 0
    let rebuilt = 0
    for (const [index, { project_id, day }] of days.entries()) {
      const from = new Date(`${day}T00:00:00Z`)
      const span = { project_id, from, to: new Date(from.getTime() + DAY_MS) }
      if (await sumsMatchEvents(services.pool, span)) continue
      differing++
      printProgress(`${project_id} ${day}: totals differ from the events`)
      if (options.dryRun || rebuilt === options.limit) continue
      await foldProject(services.pool, project_id)
      await services.write(tx => rebuildSums(tx, span))
      rebuilt++
      printProgress(`${index + 1} of ${days.length} days checked, ${rebuilt} recomputed`)
    }
    if (options.json) printJson({ days: days.length, wrong: differing, rebuilt, dry_run: options.dryRun === true })
    else if (options.dryRun) print(`${differing} of ${days.length} days would be recomputed`)
    else print(`${rebuilt} of ${days.length} days recomputed`)
  })

/**
 * Returns the embedding space of this process, null without a model.
 * @throws CommandError if the workers have another model and would revert the vectors
 */
async function requireDeployedSpace(services: Services): Promise<Space | null> {
  const space = await currentSpace(services)
  if (space && !(await ownsSettings(services, 'space_id', space.id)))
    throw new CommandError(
      'the workers use another embedding model and would revert the vectors',
      'Set EMBEDDING_PROVIDER, EMBEDDING_MODEL and EMBEDDING_DIMENSIONS to the values of the workers.',
    )
  return space
}

const providerDownError = (done: string) =>
  new CommandError(`the embedding provider failed after ${done}`, 'Set LOG_LEVEL=warn to see its errors.')

/**
 * `muster reprocess memory`: recomputes the hashes and search words of memories and embeds them, in this process. The
 * old vectors of a memory are used until the new ones are stored.
 */
export const reprocessMemory = (options: ReprocessFilters & { missing?: boolean }): Promise<void> =>
  withCellServices(options, async services => {
    const space = await requireDeployedSpace(services)
    if (options.missing && !space)
      throw new CommandError('embeddings are not configured', 'Set EMBEDDING_PROVIDER and EMBEDDING_MODEL.')
    const filter = { ...toFilter(options), missing: options.missing && space ? space.id : null }
    const found = Math.min(await countMemories(services.pool, filter), options.limit ?? Infinity)
    const total = { memories: 0, corrected: 0, embedded: 0, failed: 0 }
    const { signal } = new AbortController()
    for (let below: string | null = null; !options.dryRun && total.memories < found; ) {
      const memories = await listNextMemories(
        services.pool,
        filter,
        below,
        Math.min(MEMORY_BATCH, found - total.memories),
      )
      if (memories.length === 0) break
      below = memories[memories.length - 1].id
      total.corrected += await services.write(async tx => {
        const ids = new Set((await lockUnchanged(tx, memories)).map(({ id }) => id))
        const unchanged = memories.filter(({ id }) => ids.has(id))
        const derived = unchanged.map(({ id, content }) => ({ id, content, hash: contentHash(content) }))
        return recomputeDerived(tx, derived, services.config.KNOWLEDGE_TEXT_SEARCH_CONFIG)
      })
      if (space) {
        const derived = memories.map(memory => ({ ...memory, hash: contentHash(memory.content) }))
        const { embedded, failed, down } = await embedMemories(services, space, derived, { signal })
        if (down) throw providerDownError(`${total.memories} of ${found} memories`)
        total.embedded += embedded
        total.failed += failed
      }
      total.memories += memories.length
      printProgress(`${total.memories} of ${found} memories, ${total.embedded} embedded, ${total.failed} failed`)
    }
    const { corrected, embedded, failed } = total
    if (options.json) printJson({ found, corrected, embedded, failed, dry_run: options.dryRun === true })
    else if (options.dryRun) print(`${found} memories would be recomputed`)
    else print(`${total.memories} memories: ${corrected} corrected, ${embedded} embedded, ${failed} failed`)
  })
