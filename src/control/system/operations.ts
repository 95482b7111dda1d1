import { z } from 'zod'
import { pageOf, pageOfArray } from '#core/api/lists.ts'
import { type Operation, operation } from '#core/api/operation.ts'
import { effectiveSettings } from '#core/base/declared-settings.ts'
import { raise } from '#core/base/errors.ts'
import { type Queue, queues } from '#core/queues/queue.ts'
import { countActiveMessages, listMessages, listWorkers } from '#core/work/inspection.ts'
import { systemCells } from './cells.ts'
import { QueueMessage, QueueMessageQuery, SystemCell, SystemSetting, SystemStatus } from './model.ts'
import { leaseSeconds, liveSlots, messageEntity, silentMs, systemStatus, waitReason } from './status.ts'

const tag = 'System'
const options = { tag, gate: 'admin' } as const
const ERROR_CHARACTERS = 1000

/** @throws RESOURCE_NOT_FOUND for an unknown queue */
const requireQueue = ({ queue }: Record<string, string>): Queue<any> =>
  queues.find(queue) ?? raise('RESOURCE_NOT_FOUND', { meta: { id: queue.slice(0, 200) } })

const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i

/** Returns the message of a stored error. */
function errorText(error: unknown): string | null {
  if (error === null || error === undefined) return null
  const text = (error as { message?: unknown }).message ?? error
  return (typeof text === 'string' ? text : JSON.stringify(text)).slice(0, ERROR_CHARACTERS)
}

const status = operation({
  ...options,
  id: 'getSystemStatus',
  method: 'get',
  path: '/system/status',
  summary: 'Get the system status',
  description:
    'Returns checks, processes, queues and the busiest projects of the deployment. Figures are at most two seconds old.',
  action: 'system:GetSystemStatus',
  answers: { 200: SystemStatus },
  run: ({ services }) => systemStatus(services),
})

const messages = operation({
  ...options,
  id: 'listQueueMessages',
  method: 'get',
  path: '/system/queues/{queue}/messages',
  summary: 'List queue messages',
  description:
    'Oldest first, with the reason why each message waits; the payload is never returned. Messages are counted up to 10,000, which is then the total.',
  action: 'system:GetSystemStatus',
  internal: true,
  paged: true,
  timed: false,
  query: QueueMessageQuery,
  answers: { 200: pageOf(QueueMessage) },
  raises: ['RESOURCE_NOT_FOUND'],
  async run({ params, query, page, services }) {
    const { pool, config } = services
    const queue = requireQueue(params)
    const { state = null, project_id: project = null, older_than_seconds: olderThanSeconds = null } = query
    const [{ rows, total }, counts, workers] = await Promise.all([
      listMessages(pool, queue, { state, project, olderThanSeconds }, page),
      countActiveMessages(pool, queue),
      listWorkers(pool),
    ])
    const active = {
      all: counts.reduce((sum, each) => sum + each.active, 0),
      ofProject: (id: string) => counts.find(({ project_id }) => project_id === id)?.active ?? 0,
    }
    const slots = liveSlots(queue.name, workers, silentMs(config))
    const leaseMs = leaseSeconds({ queue, config }) * 1000
    return {
      data: rows.map(row => {
        const { data: _data, entity_busy: _busy, renewed_at, error, ...fields } = row
        return {
          ...fields,
          lease_expires_at: renewed_at && new Date(Date.parse(renewed_at) + leaseMs).toISOString(),
          entity: messageEntity(row),
          waits_for: waitReason(row, slots, active),
          error: errorText(error),
        }
      }),
      total,
      limit: page.limit,
      offset: page.offset,
    }
  },
})

const deadLetter = {
  ...options,
  action: 'system:ManageDeadLetters',
  internal: true,
} as const

const replay = operation({
  ...deadLetter,
  raises: ['RESOURCE_NOT_FOUND'],
  id: 'replayQueueMessage',
  method: 'post',
  path: '/system/queues/{queue}/messages/{message_id}/replay',
  summary: 'Replay a dead letter',
  description: 'Returns a dead letter to its queue with the full number of attempts.',
  answers: { 202: z.object({ id: z.string().describe('ID of the message') }).meta({ id: 'ReplayedMessage' }) },
  async run({ params, services, audit }) {
    const { name } = requireQueue(params)
    const id = params.message_id
    audit.detail.queue = name
    const moved = UUID.test(id) ? await services.queues.deadLetters.replay({ queue: name, ids: [id] }) : 0
    if (moved === 0) raise('RESOURCE_NOT_FOUND', { meta: { id: id.slice(0, 200) } })
    audit.resource_public_id = id
    return { id }
  },
})

const remove = operation({
  ...deadLetter,
  raises: ['RESOURCE_NOT_FOUND'],
  id: 'deleteQueueMessage',
  method: 'delete',
  path: '/system/queues/{queue}/messages/{message_id}',
  summary: 'Delete a dead letter',
  description: 'Drops a dead letter; its work is never done. Messages that wait or run cannot be deleted.',
  answers: { 204: null },
  async run({ params, services, audit }) {
    const { name } = requireQueue(params)
    const id = params.message_id
    audit.detail.queue = name
    const isRemoved = UUID.test(id) && (await services.queues.deadLetters.remove({ queue: name, id }))
    if (!isRemoved) raise('RESOURCE_NOT_FOUND', { meta: { id: id.slice(0, 200) } })
    audit.resource_public_id = id
  },
})

const settings = operation({
  ...options,
  id: 'listSystemSettings',
  method: 'get',
  path: '/system/settings',
  summary: 'List deployment settings',
  description: 'Returns the settings of the web process that answers. Values of secrets are never returned.',
  action: 'system:ListSettings',
  internal: true,
  paged: true,
  timed: false,
  answers: { 200: pageOf(SystemSetting) },
  run: async ({ services, page }) => pageOfArray(effectiveSettings(services.config), page),
})

const cells = operation({
  ...options,
  id: 'listCells',
  method: 'get',
  path: '/system/cells',
  summary: 'List cells',
  description:
    'Returns the databases of the deployment, the first of which is `home`, with their state, their size, and the lag of the copied users and policies. A deployment without cells has `home` only. Figures are at most two seconds old.',
  action: 'system:GetSystemStatus',
  internal: true,
  paged: true,
  timed: false,
  answers: { 200: pageOf(SystemCell) },
  run: async ({ services, page }) => pageOfArray(await systemCells(services), page),
})

export const systemOperations: Operation[] = [status, messages, replay, remove, settings, cells]
