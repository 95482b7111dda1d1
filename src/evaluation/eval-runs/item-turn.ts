import { permissionCheckFor } from '#core/api/access.ts'
import { validationProblems } from '#core/api/validate.ts'
import { raise } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import type { Tx } from '#core/writes/writer.ts'
import { EVAL_SOURCE } from '#execution/generations/model.ts'
import { createTurnWithoutWakeUp, turnQueue } from '#execution/generations/request/create.ts'
import { messagesOf, TurnMessage } from '#execution/generations/request/generate-request.ts'
import type { ModelMessage } from '#execution/providers/model-messages.ts'
import { callerForPrincipal } from '#identity/principals/principals.ts'
import { evalToolContext } from './context.ts'
import { type OpenItem, runPermission } from './model.ts'
import { itemTurnCtes } from './store.ts'

/** Creates the turn of an item and makes the item wait for it. */
export async function createItemTurn(
  tx: Tx,
  services: Services,
  item: OpenItem,
  { generation_id, messages }: { generation_id: string; messages: ModelMessage[] },
): Promise<void> {
  const { run, project_id } = item
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
    { ctes: itemTurnCtes(item, generation_id, services.config.EVAL_RUN_ABANDONED_AFTER_MS) },
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
export async function itemMessages(services: Services, { input, project_id, run }: OpenItem): Promise<ModelMessage[]> {
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
