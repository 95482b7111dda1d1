import { z } from 'zod'
import { permissionCheckFor } from '#core/api/access.ts'
import { parse } from '#core/api/validate.ts'
import { AppError, raise } from '#core/base/errors.ts'
import { storableValue } from '#core/base/storable-text.ts'
import { agentKind } from '#execution/agents/model.ts'
import type { TurnOwner } from '#execution/generations/loop/turn-owner.ts'
import { createTurn } from '#execution/generations/request/create.ts'
import { messagesOf, TurnMessage } from '#execution/generations/request/generate-request.ts'
import type { ModelMessage } from '#execution/providers/model-messages.ts'
import { settleStarted } from './settle.ts'
import { inputInvalid, type TriggerTarget } from './targets.ts'

/** Value of `source` for the turns of triggers. */
const SOURCE = 'trigger'

const Messages = z.array(TurnMessage).min(1).max(500)

/** Returns `input.messages`, else one user message with `input.message` or the input as JSON. */
function inputMessages(input: Record<string, unknown>): z.output<typeof Messages> {
  if (input.messages !== undefined) {
    if (Array.isArray(input.messages) && input.messages.some(message => message?.role === 'system'))
      raise('SYSTEM_MESSAGE_NOT_ALLOWED')
    return withInputErrors(() => parse(Messages, input.messages, 'input.messages'))
  }
  if (Object.keys(input).length === 0) inputInvalid('input: must not be empty for an agent')
  const content = typeof input.message === 'string' ? input.message : JSON.stringify(input)
  return withInputErrors(() => parse(Messages, [{ role: 'user', content }], 'input'))
}

function withInputErrors<T>(work: () => T): T {
  try {
    return work()
  } catch (error) {
    if (error instanceof AppError && error.code === 'VALIDATION_FAILED') inputInvalid(error.message, error)
    throw error
  }
}

/** A firing of an agent creates a turn, which settles the firing. */
export const agentTarget: TriggerTarget = {
  type: 'agent',
  kind: 'agent',
  action: 'agents:CreateAgentGeneration',
  async prepare(services, { input, caller, trigger: { project_id } }) {
    const messages = inputMessages(storableValue(input) as Record<string, unknown>)
    try {
      return await messagesOf({ services, allow: permissionCheckFor(caller), body: { messages } }, project_id)
    } catch (error) {
      if (error instanceof AppError && error.code === 'VALIDATION_FAILED') inputInvalid(error.message, error)
      throw error
    }
  },
  starts: 'generation',
  async start(tx, services, { trigger, target, authority, prepared }) {
    // Locks the agent against deletion until the turn is committed.
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

/** Settles the firing of a turn that has settled or waits for client tool outputs. */
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
