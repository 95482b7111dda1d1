import { AppError, raise } from '../../core/api/errors.ts'
import { newId } from '../../core/api/ids.ts'
import { validationProblems } from '../../core/api/validate.ts'
import type { Tx } from '../../core/db/writer.ts'
import { permissionCheckFor } from '../../core/iam/access.ts'
import type { JobContext } from '../../core/jobs/handler.ts'
import { subscribeUntil } from '../../core/jobs/subscription.ts'
import { injectFault } from '../../core/process/fault-injection.ts'
import type { Services } from '../../core/process/services.ts'
import { generationKind } from '../../execution/generations/model.ts'
import { createTurnWithoutWakeUp, turnQueue } from '../../execution/generations/request/create.ts'
import { messagesOf, TurnMessage } from '../../execution/generations/request/generate-request.ts'
import type { ModelMessage } from '../../execution/providers/model-messages.ts'
import { callerForPrincipal } from '../../identity/principals.ts'
import { PAUSE_HOLD_MS } from '../../identity/projects/pause.ts'
import { evalToolContext } from './context.ts'
import { evalResultKind, isLive, type OpenItem, RESULT_CHANNEL, runPermission } from './model.ts'
import type { EvalItemMessage } from './queue.ts'
import { deferItem, findItemState, itemTurnCtes, lockQueuedItem, lockRun } from './store.ts'
import { executionFailure, storeEvalResult } from './store-result.ts'

/** `source` of turns of items. */
export const EVAL_SOURCE = 'eval'

/** Polling interval, as a fallback for lost notifications. */
const POLL_MS = 2000

/**
 * Executes an item: creates its turn, which settles the item, then occupies the slot until the item is done to limit
 * the concurrent items of a worker. Losing the worker meanwhile has no effect.
 */
export async function executeItem(message: EvalItemMessage, context: JobContext): Promise<void> {
  const { services } = context
  await injectFault(services, 'eval_item_asking')
  const subscription = subscribeResult(services, message.result_id)
  try {
    if (!(await tryCreateTurn(message, context))) return
    await injectFault(services, 'eval_item_asked')
    await subscription.wait({
      known: { state: 'asked' },
      closed: AbortSignal.any([context.stopping, context.signal]),
      withinMs: services.config.EVAL_TASK_LEASE_TTL_MS,
    })
  } finally {
    subscription.cancel()
  }
}

const subscribeResult = (services: Services, id: string) =>
  subscribeUntil({
    subscribe: listener =>
      services.notifications.listen(RESULT_CHANNEL, settledId => settledId === id && listener(), {
        onReconnect: listener,
      }),
    read: () => findItemState(services.pool, id),
    isOver: state => !state || state.state === 'done',
    pollMs: POLL_MS,
  })

/** Creates the turn of a queued item, or records the failure. Returns whether a turn was created. */
async function tryCreateTurn(
  { result_id }: EvalItemMessage,
  { services, complete, log }: JobContext,
): Promise<boolean> {
  try {
    return await services.write(async tx => {
      const item = await lockQueuedItem(tx, result_id)
      if (!item || !isLive(item.run)) return false
      if (item.paused) {
        await deferItem(tx, item.id, PAUSE_HOLD_MS)
        return false
      }
      await createItemTurn(tx, services, item)
      complete(tx)
      return true
    })
  } catch (error) {
    if (!(error instanceof AppError) || error.code === 'SERVICE_NOT_READY') throw error
    if (error.code === 'PROJECT_PAUSED') {
      await deferItem(services.pool, result_id, PAUSE_HOLD_MS)
      return false
    }
    await failQueued(services, result_id, error)
    log.info({ result_id, outcome: 'failed', code: error.code, decision: 'abandoned' }, 'eval item failed')
    return false
  }
}

async function createItemTurn(tx: Tx, services: Services, item: OpenItem): Promise<void> {
  const { run, project_id } = item
  const messages = await toModelMessages(services, item)
  const generation_id = newId(generationKind.prefix)
  await createTurnWithoutWakeUp(
    tx,
    services,
    {
      generation_id,
      project_id,
      agent_id: run.agent_id,
      agent_version: run.agent_version,
      messages,
      metadata: { eval_id: run.eval_id, eval_run_id: run.id, dataset_item_id: item.item_id },
      tool_context: evalToolContext(services, run),
      trigger_id: run.trigger_id,
      source: EVAL_SOURCE,
      authority: run.authority,
      permission: runPermission(run.eval_id),
      streamed: false,
      shape: 'agent',
    },
    { ctes: itemTurnCtes(item.id, run, generation_id) },
  )
  tx.send(turnQueue, { generation_id, project_id })
}

/** Whether a message has the stored form, which needs no resolution of documents and files. */
const isStoredMessage = ({ role, content }: OpenItem['input'][number]): boolean => {
  const types = typeof content === 'string' ? ['text'] : content.map(({ type }) => type)
  if (role === 'assistant') return types.every(type => type === 'text' || type === 'tool_call')
  if (role === 'tool') return Array.isArray(content) && types.every(type => type === 'tool_result')
  return role === 'user' && types.every(type => type === 'text' || type === 'attachment')
}

/**
 * Returns the messages of an item for its turn. Documents and files are read with the permissions of the principal that
 * started the run.
 */
async function toModelMessages(services: Services, { input, project_id, run }: OpenItem): Promise<ModelMessage[]> {
  if (input.every(isStoredMessage)) return input as ModelMessage[]
  for (const [index, message] of input.entries()) {
    if (isStoredMessage(message)) continue
    const [problem] = validationProblems(TurnMessage, message, `input[${index}]`)
    if (problem)
      raise('VALIDATION_FAILED', { message: `${problem.path} ${problem.message}`, meta: { problems: [problem] } })
  }
  const caller = await callerForPrincipal(services, run.authority, project_id)
  return messagesOf({ services, allow: permissionCheckFor(caller), body: { messages: input as never } }, project_id)
}

/** Fails a queued item. */
export const failQueued = (services: Services, resultId: string, error: unknown): Promise<unknown> =>
  services.write(async tx => {
    const item = await lockRunAndQueuedItem(tx, resultId)
    if (item) await storeEvalResult(tx, item, 'queued', { output: null, scores: [], error: executionFailure(error) })
  })

/** Locks a queued item after its run: cancelling a run locks the run and deletes its items. */
async function lockRunAndQueuedItem(tx: Tx, resultId: string): Promise<OpenItem | null> {
  const result = await evalResultKind.find(tx, resultId)
  if (!result || !(await lockRun(tx, result.eval_run_id))) return null
  return lockQueuedItem(tx, resultId)
}
