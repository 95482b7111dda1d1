import { AppError, raise } from '../../core/api/errors.ts'
import { newId } from '../../core/api/ids.ts'
import { validationProblems } from '../../core/api/validate.ts'
import type { Tx } from '../../core/db/writer.ts'
import { allowedPatterns } from '../../core/iam/access.ts'
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
import { deferItem, evalRunState, itemTurnCtes, lockQueued, lockRun } from './store.ts'
import { notAnswered, storeEvalResult } from './store-result.ts'

/** What `source` says of the turns of items. */
export const EVAL_SOURCE = 'eval'

/** The floor under the notifications. */
const POLL_MS = 2000

/**
 * Asks an item: makes its turn, which settles it. What is left is to keep the slot until the item is done, so that a worker
 * has no more items asked at once than it may; a worker that is lost meanwhile loses nothing.
 */
export async function executeItem(message: EvalItemMessage, context: JobContext): Promise<void> {
  const { services } = context
  await injectFault(services, 'eval_item_asking')
  const expected = expectResult(services, message.result_id)
  try {
    if (!(await makeTurn(message, context))) return
    await injectFault(services, 'eval_item_asked')
    await expected.wait({
      known: { state: 'asked' },
      closed: AbortSignal.any([context.stopping, context.signal]),
      withinMs: services.config.EVAL_TASK_LEASE_TTL_MS,
    })
  } finally {
    expected.cancel()
  }
}

const expectResult = (services: Services, id: string) =>
  subscribeUntil({
    subscribe: notice =>
      services.notifications.listen(RESULT_CHANNEL, stored => stored === id && notice(), { onReconnect: notice }),
    read: () => evalRunState(services.pool, id),
    isOver: state => !state || state.state === 'done',
    pollMs: POLL_MS,
  })

/** Makes the turn of an item that waits for it, or records why there is none. Returns whether there is one. */
async function makeTurn({ result_id }: EvalItemMessage, { services, complete, log }: JobContext): Promise<boolean> {
  try {
    return await services.write(async tx => {
      const item = await lockQueued(tx, result_id)
      if (!item || !isLive(item.run)) return false
      if (item.paused) {
        await deferItem(tx, item.id, PAUSE_HOLD_MS)
        return false
      }
      await placeItem(tx, services, item)
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
    log.info({ result_id, outcome: 'failed', code: error.code, decision: 'given up' }, 'eval item')
    return false
  }
}

async function placeItem(tx: Tx, services: Services, item: OpenItem): Promise<void> {
  const { run, project_id } = item
  const messages = await asMessages(services, item)
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

/** What is stored of earlier turns, beside what a caller may send. */
const isStored = ({ role, content }: OpenItem['input'][number]): boolean => {
  const types = typeof content === 'string' ? ['text'] : content.map(({ type }) => type)
  if (role === 'assistant') return types.every(type => type === 'text' || type === 'tool_call')
  if (role === 'tool') return Array.isArray(content) && types.every(type => type === 'tool_result')
  return role === 'user' && types.every(type => type === 'text' || type === 'attachment')
}

/**
 * The messages of an item as its turn gets them: as they are, where nothing has to be read for them, else with the documents
 * and files that they name, as far as who started the run may read them.
 */
async function asMessages(services: Services, { input, project_id, run }: OpenItem): Promise<ModelMessage[]> {
  if (input.every(isStored)) return input as ModelMessage[]
  for (const [index, message] of input.entries()) {
    if (isStored(message)) continue
    const [problem] = validationProblems(TurnMessage, message, `input[${index}]`)
    if (problem)
      raise('VALIDATION_FAILED', { message: `${problem.path} ${problem.message}`, meta: { problems: [problem] } })
  }
  const caller = await callerForPrincipal(services, run.authority, project_id)
  return messagesOf({ services, allow: allowedPatterns(caller), body: { messages: input as never } }, project_id)
}

/** Ends an item that no turn was made for. */
export const failQueued = (services: Services, resultId: string, error: unknown): Promise<unknown> =>
  services.write(async tx => {
    const item = await lockQueuedBehindRun(tx, resultId)
    if (item) await storeEvalResult(tx, item, 'queued', { output: null, scores: [], error: notAnswered(error) })
  })

/** The same lock, behind that of the run: who drops the items of a run holds it. */
async function lockQueuedBehindRun(tx: Tx, resultId: string): Promise<OpenItem | null> {
  const result = await evalResultKind.find(tx, resultId)
  if (!result || !(await lockRun(tx, result.eval_run_id))) return null
  return lockQueued(tx, resultId)
}
