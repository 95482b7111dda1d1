import { nodeExecutionQueue, runQueue, runWakeQueue } from '../automation/runs/queue.ts'
import { triggerFiringQueue } from '../automation/triggers/queue.ts'
import { refireTrigger } from '../automation/triggers/store.ts'
import { embedDocuments } from '../content/embeddings/embed-documents.ts'
import { ownsSettings } from '../content/embeddings/settings-owner.ts'
import { currentSpace, type Space } from '../content/embeddings/space.ts'
import { restartIngestion } from '../content/ingestion/start-ingestion.ts'
import { rebuildSums, sumsMatchEvents, usageDays } from '../control/usage/rebuild.ts'
import { notifyWorkers } from '../control/webhooks/operations.ts'
import { insertRedeliveries } from '../control/webhooks/store.ts'
import { conversationQueue } from '../conversation/turns/mailbox.ts'
import { AppError } from '../core/api/errors.ts'
import { queueMessage } from '../core/jobs/queue.ts'
import type { Services } from '../core/process/services.ts'
import { turnQueue } from '../execution/generations/request/create.ts'
import { callerForPrincipal } from '../identity/principals.ts'
import { embedMemories } from '../memory/memories/embed-memories.ts'
import { contentHash } from '../memory/memories/hash.ts'
import { lockUnchanged, recomputeDerived } from '../memory/memories/store.ts'
import { withServices } from './environment.ts'
import { CommandError, print, printJson, printProgress } from './output.ts'
import {
  countDeliveries,
  countDocuments,
  countFirings,
  countMemories,
  firstAdmin,
  type IdleRun,
  type IdleTurn,
  lockDeliveries,
  lockFirings,
  nextDocuments,
  nextMemories,
  runsWithoutMessage,
  turnsWithoutMessage,
} from './store.ts'

export type ReprocessFilters = {
  data: string
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
const DOCUMENTS = 50
const MEMORIES = 64

const bounds = ({ project, from, to, id }: ReprocessFilters) => ({
  project: project ?? null,
  from: from ?? null,
  to: to ?? null,
  ids: id,
})

/** `muster reprocess deliveries`: sends deliveries again in batches, each batch one transaction. */
export const reprocessDeliveries = (
  options: ReprocessFilters & { webhook?: string; status: 'failed' | 'completed' },
): Promise<void> =>
  withServices(options.data, async services => {
    const filter = { ...bounds(options), webhook: options.webhook ?? null, status: options.status }
    const found = Math.min(await countDeliveries(services.pool, filter), options.limit ?? Infinity)
    let redelivered = 0
    let after = ''
    while (!options.dryRun && redelivered < found) {
      const batch = await services.write(async tx => {
        const taken = await lockDeliveries(tx, filter, after, Math.min(BATCH, found - redelivered))
        if (taken.length === 0) return null
        const count = await insertRedeliveries(
          tx,
          taken.map(({ id }) => id),
        )
        const webhooks = new Map(taken.map(({ webhook_id, project_id }) => [webhook_id, project_id]))
        for (const [id, project_id] of webhooks) notifyWorkers(tx, { id, project_id })
        return { count, last: taken[taken.length - 1].id }
      })
      if (!batch) break
      redelivered += batch.count
      after = batch.last
      printProgress(`${redelivered} of ${found} deliveries queued`)
    }
    if (options.json) printJson({ found, redelivered, dry_run: options.dryRun === true })
    else if (options.dryRun) print(`${found} deliveries would be sent again`)
    else print(`${redelivered} deliveries are sent again`)
  })

/** `muster reprocess generations`: sends the wake-ups that turns lack. Sending one that exists changes nothing. */
export const reprocessGenerations = (
  options: ReprocessFilters & { status?: 'pending' | 'in_progress' },
): Promise<void> =>
  withServices(options.data, async ({ pool, queues }) => {
    const idle = await turnsWithoutMessage(
      pool,
      { ...bounds(options), status: options.status ?? null },
      { turn: turnQueue.name, conversation: conversationQueue.name },
      options.limit ?? MAX_TURNS,
    )
    for (let start = 0; !options.dryRun && start < idle.length; start += BATCH) {
      const batch = idle.slice(start, start + BATCH)
      await queues.send(batch.map(wakeUp))
      printProgress(`${start + batch.length} of ${idle.length} turns woken`)
    }
    const woken = options.dryRun ? 0 : idle.length
    if (options.json)
      printJson({
        found: idle.length,
        woken,
        dry_run: options.dryRun === true,
        generations: idle.map(({ id, status }) => ({ id, status })),
      })
    else if (options.dryRun) print(`${idle.length} turns would be woken`)
    else print(`${woken} turns are woken`)
  })

/**
 * `muster reprocess firings`: makes failed firings again, each as a new one with the input and the causes of the first, or
 * sends the wake-ups that waiting ones lack. A second run repeats nothing.
 */
export const reprocessFirings = (
  options: ReprocessFilters & { trigger?: string; status: 'failed' | 'pending' },
): Promise<void> =>
  withServices(options.data, async services => {
    const filter = { ...bounds(options), trigger: options.trigger ?? null, status: options.status }
    const found = Math.min(await countFirings(services.pool, filter), options.limit ?? Infinity)
    let fired = 0
    let after = ''
    while (!options.dryRun && fired < found) {
      const batch = await services.write(async tx => {
        const taken = await lockFirings(tx, filter, after, Math.min(BATCH, found - fired))
        const again = options.status === 'failed' ? await refireTrigger(tx, taken) : taken
        for (const { id, project_id } of again) tx.send(triggerFiringQueue, { firing_id: id, project_id })
        return taken
      })
      if (batch.length === 0) break
      fired += batch.length
      after = batch[batch.length - 1].id
      printProgress(`${fired} of ${found} firings queued`)
    }
    if (options.json) printJson({ found, fired, dry_run: options.dryRun === true })
    else if (options.dryRun) print(`${found} firings would be made again`)
    else print(`${fired} firings are made again`)
  })

/**
 * `muster reprocess runs`: sends the wake-ups that runs lack which can move, and those of attempts that no worker was told
 * of. One that finds nothing to do changes nothing.
 */
export const reprocessRuns = (options: ReprocessFilters): Promise<void> =>
  withServices(options.data, async ({ pool, queues }) => {
    const idle = await runsWithoutMessage(
      pool,
      bounds(options),
      { run: runQueue.name, told: runWakeQueue.name, node: nodeExecutionQueue.name },
      options.limit ?? MAX_TURNS,
    )
    const ids = [...new Set(idle.map(({ id }) => id))]
    for (let start = 0; !options.dryRun && start < idle.length; start += BATCH) {
      const batch = idle.slice(start, start + BATCH)
      await queues.send(batch.map(wakeUpOfRun))
      printProgress(`${start + batch.length} of ${idle.length} wake-ups sent`)
    }
    const woken = options.dryRun ? 0 : ids.length
    if (options.json) printJson({ found: ids.length, woken, dry_run: options.dryRun === true, runs: ids })
    else if (options.dryRun) print(`${ids.length} runs would be woken`)
    else print(`${woken} runs are woken`)
  })

const wakeUpOfRun = ({ id: run_id, project_id, execution_id }: IdleRun) =>
  execution_id === null
    ? queueMessage(runQueue, { run_id, project_id })
    : queueMessage(nodeExecutionQueue, { execution_id, run_id, project_id })

const wakeUp = ({ id, project_id, conversation_id }: IdleTurn) =>
  conversation_id === null
    ? queueMessage(turnQueue, { generation_id: id, project_id })
    : queueMessage(conversationQueue, { conversation_id, project_id })

/**
 * `muster reprocess ingestions`: re-ingests documents, each in a transaction of its own, in the name of the first admin.
 * One that cannot be ingested any more is passed by and named.
 */
export const reprocessIngestions = (options: ReprocessFilters & { status: 'failed' | 'ready' }): Promise<void> =>
  withServices(options.data, async services => {
    const filter = { ...bounds(options), status: options.status, missing: null }
    const found = Math.min(await countDocuments(services.pool, filter), options.limit ?? Infinity)
    const admin = await firstAdmin(services.pool)
    if (!admin && found > 0)
      throw new CommandError('there is no admin in whose name files are read', 'muster bootstrap')
    const refused: { id: string; code: string }[] = []
    let queued = 0
    for (let below: string | null = null; !options.dryRun && queued + refused.length < found; ) {
      const documents = await nextDocuments(
        services.pool,
        filter,
        below,
        Math.min(DOCUMENTS, found - queued - refused.length),
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
      printProgress(`${queued + refused.length} of ${found} documents looked at, ${queued} queued`)
    }
    if (options.json) printJson({ found, queued, refused, dry_run: options.dryRun === true })
    else if (options.dryRun) print(`${found} documents would be ingested again`)
    else print(`${queued} documents are ingested again`)
  })

/**
 * `muster reprocess embeddings`: embeds documents here and now, a page of them at a time. What a document was found by
 * stays until its new vectors are there.
 */
export const reprocessEmbeddings = (options: ReprocessFilters & { missing?: boolean }): Promise<void> =>
  withServices(options.data, async services => {
    const space = await leadingSpace(services)
    if (!space) throw new CommandError('embeddings are not configured', 'Set EMBEDDING_PROVIDER and EMBEDDING_MODEL.')
    const filter = { ...bounds(options), status: null, missing: options.missing ? space.id : null }
    const found = Math.min(await countDocuments(services.pool, filter), options.limit ?? Infinity)
    const total = { documents: 0, embedded: 0, failed: 0 }
    const { signal } = new AbortController()
    for (let below: string | null = null; !options.dryRun && total.documents < found; ) {
      const documents = await nextDocuments(services.pool, filter, below, Math.min(DOCUMENTS, found - total.documents))
      if (documents.length === 0) break
      below = documents[documents.length - 1].id
      const { embedded, failed, down } = await embedDocuments(services, space, documents, {
        signal,
        again: !options.missing,
      })
      if (down) throw silent(`${total.documents} of ${found} documents`)
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
    else print(`${embedded} chunks of ${total.documents} documents are embedded; ${failed} failed`)
  })

const DAY_MS = 86_400_000

/**
 * `muster reprocess usage`: adds up usage again where the sums are not what the events say, a day of a project at a time.
 * Usage of any project waits while that is made, some hundredths of a second for each.
 */
export const reprocessUsage = (options: Omit<ReprocessFilters, 'id'>): Promise<void> =>
  withServices(options.data, async services => {
    const days = await usageDays(services.pool, bounds({ ...options, id: [] }))
    let wrong = 0
    let rebuilt = 0
    for (const [index, { project_id, day }] of days.entries()) {
      const from = new Date(`${day}T00:00:00Z`)
      const span = { project_id, from, to: new Date(from.getTime() + DAY_MS) }
      if (await sumsMatchEvents(services.pool, span)) continue
      wrong++
      printProgress(`${project_id} ${day}: the sums are not those of the events`)
      if (options.dryRun || rebuilt === options.limit) continue
      await services.write(tx => rebuildSums(tx, span))
      rebuilt++
      printProgress(`${index + 1} of ${days.length} days looked at, ${rebuilt} added up again`)
    }
    if (options.json) printJson({ days: days.length, wrong, rebuilt, dry_run: options.dryRun === true })
    else if (options.dryRun) print(`${wrong} of ${days.length} days would be added up again`)
    else print(`${rebuilt} of ${days.length} days are added up again`)
  })

/** The space of this process; null without a model. Fails where the workers would turn its vectors back. */
async function leadingSpace(services: Services): Promise<Space | null> {
  const space = await currentSpace(services)
  if (space && !(await ownsSettings(services, 'space_id', space.id)))
    throw new CommandError(
      'the workers have another embedding model and would turn everything back',
      'Set EMBEDDING_PROVIDER, EMBEDDING_MODEL and EMBEDDING_DIMENSIONS as they are for the workers.',
    )
  return space
}

const silent = (done: string) =>
  new CommandError(`the embedding provider embeds nothing; ${done} are done`, 'LOG_LEVEL=warn says what it answers.')

/**
 * `muster reprocess memory`: derives the hashes and words of memories from their texts and embeds them, here and now. What a
 * memory was found by stays until its new vectors are there.
 */
export const reprocessMemory = (options: ReprocessFilters & { missing?: boolean }): Promise<void> =>
  withServices(options.data, async services => {
    const space = await leadingSpace(services)
    if (options.missing && !space)
      throw new CommandError('embeddings are not configured', 'Set EMBEDDING_PROVIDER and EMBEDDING_MODEL.')
    const filter = { ...bounds(options), missing: options.missing && space ? space.id : null }
    const found = Math.min(await countMemories(services.pool, filter), options.limit ?? Infinity)
    const total = { memories: 0, corrected: 0, embedded: 0, failed: 0 }
    const { signal } = new AbortController()
    for (let below: string | null = null; !options.dryRun && total.memories < found; ) {
      const memories = await nextMemories(services.pool, filter, below, Math.min(MEMORIES, found - total.memories))
      if (memories.length === 0) break
      below = memories[memories.length - 1].id
      total.corrected += await services.write(async tx => {
        const ids = new Set((await lockUnchanged(tx, memories)).map(({ id }) => id))
        const held = memories.filter(({ id }) => ids.has(id))
        const derived = held.map(({ id, content }) => ({ id, hash: contentHash(content) }))
        return recomputeDerived(tx, derived, services.config.KNOWLEDGE_TEXT_SEARCH_CONFIG)
      })
      if (space) {
        const derived = memories.map(memory => ({ ...memory, hash: contentHash(memory.content) }))
        const { embedded, failed, down } = await embedMemories(services, space, derived, { signal })
        if (down) throw silent(`${total.memories} of ${found} memories`)
        total.embedded += embedded
        total.failed += failed
      }
      total.memories += memories.length
      printProgress(`${total.memories} of ${found} memories, ${total.embedded} embedded, ${total.failed} failed`)
    }
    const { corrected, embedded, failed } = total
    if (options.json) printJson({ found, corrected, embedded, failed, dry_run: options.dryRun === true })
    else if (options.dryRun) print(`${found} memories would be derived anew`)
    else print(`${total.memories} memories: ${corrected} corrected, ${embedded} embedded, ${failed} failed`)
  })
