import { tellWorkers } from '../control/webhooks/operations.ts'
import { redeliverAll } from '../control/webhooks/store.ts'
import { conversationQueue } from '../conversation/turns/mailbox.ts'
import { message } from '../core/queue.ts'
import { generationRun } from '../execution/generations/turn.ts'
import { withServices } from './environment.ts'
import { note, print, printJson } from './output.ts'
import { countDeliveries, type IdleTurn, takeDeliveries, turnsWithoutMessage } from './store.ts'

export type Filters = {
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

const bounds = ({ project, from, to, id }: Filters) => ({
  project: project ?? null,
  from: from ?? null,
  to: to ?? null,
  ids: id,
})

/** `muster reprocess deliveries`: sends deliveries again in batches, each batch one transaction. */
export const reprocessDeliveries = (
  options: Filters & { webhook?: string; status: 'failed' | 'completed' },
): Promise<void> =>
  withServices(options.data, async services => {
    const filter = { ...bounds(options), webhook: options.webhook ?? null, status: options.status }
    const found = Math.min(await countDeliveries(services.pool, filter), options.limit ?? Infinity)
    let redelivered = 0
    let after = ''
    while (!options.dryRun && redelivered < found) {
      const batch = await services.write(async tx => {
        const taken = await takeDeliveries(tx, filter, after, Math.min(BATCH, found - redelivered))
        if (taken.length === 0) return null
        const count = await redeliverAll(
          tx,
          taken.map(({ id }) => id),
        )
        const webhooks = new Map(taken.map(({ webhook_id, project_id }) => [webhook_id, project_id]))
        for (const [id, project_id] of webhooks) tellWorkers(tx, { id, project_id })
        return { count, last: taken[taken.length - 1].id }
      })
      if (!batch) break
      redelivered += batch.count
      after = batch.last
      note(`${redelivered} of ${found} deliveries queued`)
    }
    if (options.json) printJson({ found, redelivered, dry_run: options.dryRun === true })
    else if (options.dryRun) print(`${found} deliveries would be sent again`)
    else print(`${redelivered} deliveries are sent again`)
  })

/** `muster reprocess generations`: sends the wake-ups that turns lack. Sending one that exists changes nothing. */
export const reprocessGenerations = (options: Filters & { status?: 'pending' | 'in_progress' }): Promise<void> =>
  withServices(options.data, async ({ pool, queues }) => {
    const idle = await turnsWithoutMessage(
      pool,
      { ...bounds(options), status: options.status ?? null },
      { turn: generationRun.name, conversation: conversationQueue.name },
      options.limit ?? MAX_TURNS,
    )
    for (let start = 0; !options.dryRun && start < idle.length; start += BATCH) {
      const batch = idle.slice(start, start + BATCH)
      await queues.send(batch.map(wakeUp))
      note(`${start + batch.length} of ${idle.length} turns woken`)
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

const wakeUp = ({ id, project_id, conversation_id }: IdleTurn) =>
  conversation_id === null
    ? message(generationRun, { generation_id: id, project_id })
    : message(conversationQueue, { conversation_id, project_id })
