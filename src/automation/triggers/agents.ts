import { z } from 'zod'
import { AppError, raise } from '../../core/api/errors.ts'
import { storableValue } from '../../core/api/storable-text.ts'
import { parse } from '../../core/api/validate.ts'
import { allowedPatterns } from '../../core/iam/access.ts'
import { agentKind } from '../../execution/agents/model.ts'
import type { TurnOwner } from '../../execution/generations/loop/turn-owner.ts'
import { createTurn } from '../../execution/generations/request/create.ts'
import { messagesOf, TurnMessage } from '../../execution/generations/request/generate-request.ts'
import type { ModelMessage } from '../../execution/providers/model-messages.ts'
import { settleStarted } from './settle.ts'
import { inputInvalid, type TriggerTarget } from './targets.ts'

/** Agents as targets: a firing makes a turn, which ends it. */

/** What `source` says of the turns that triggers make. */
const SOURCE = 'trigger'

const Messages = z.array(TurnMessage).min(1).max(500)

/** What an input says as messages. */
function messagesFrom(input: Record<string, unknown>): z.output<typeof Messages> {
  if (input.messages !== undefined) {
    if (Array.isArray(input.messages) && input.messages.some(message => message?.role === 'system'))
      raise('SYSTEM_MESSAGE_NOT_ALLOWED')
    return refusing(() => parse(Messages, input.messages, 'input.messages'))
  }
  if (Object.keys(input).length === 0) inputInvalid('An agent needs messages, a message or other input')
  const content = typeof input.message === 'string' ? input.message : JSON.stringify(input)
  return refusing(() => parse(Messages, [{ role: 'user', content }], 'input'))
}

function refusing<T>(work: () => T): T {
  try {
    return work()
  } catch (error) {
    if (error instanceof AppError && error.code === 'VALIDATION_FAILED') inputInvalid(error.message, error)
    throw error
  }
}

export const agentTarget: TriggerTarget = {
  type: 'agent',
  kind: 'agent',
  action: 'agents:CreateAgentGeneration',
  async prepare(services, { input, caller, trigger: { project_id } }) {
    const messages = messagesFrom(storableValue(input) as Record<string, unknown>)
    try {
      return await messagesOf({ services, allow: allowedPatterns(caller), body: { messages } }, project_id)
    } catch (error) {
      if (error instanceof AppError && error.code === 'VALIDATION_FAILED') inputInvalid(error.message, error)
      throw error
    }
  },
  starts: 'generation',
  async start(tx, services, { trigger, target, authority, prepared }) {
    // Held, so that the turn does not outlive it.
    if (!(await agentKind.reference(tx, target.id, trigger.project_id)))
      return raise('TRIGGER_TARGET_NOT_FOUND', { meta: { target_type: 'agent', target_id: target.id } })
    const { generation_id } = await createTurn(tx, services, {
      project_id: trigger.project_id,
      agent_id: target.id,
      messages: prepared as ModelMessage[],
      source: SOURCE,
      authority,
      streamed: false,
      shape: 'agent',
    })
    return { result_id: generation_id, status: 'in_progress', over: false }
  },
}

/** A turn ends its firing, whoever ends the turn, and when it waits for its client. */
export const triggeredTurns: TurnOwner = {
  source: SOURCE,
  async settled(tx, { id, content_mode }, { status, content, object, error }) {
    const output = content_mode === 'none' ? null : (object ?? content)
    const failure = error ?? new AppError('INTERNAL_ERROR').recorded()
    await settleStarted(tx, id, status === 'completed' ? { status, output } : { status, output: null, error: failure })
  },
  async paused(tx, { id }) {
    await settleStarted(tx, id, { status: 'requires_action', output: null })
  },
}
