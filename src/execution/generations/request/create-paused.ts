import { randomUUID } from 'node:crypto'
import { systemClock } from '#core/base/clock.ts'
import type { Services } from '#core/base/services.ts'
import type { Tx } from '#core/writes/writer.ts'
import { journalRows } from '../journal/store.ts'
import { emitPaused } from '../loop/turn-hooks.ts'
import { turnOwnerOf } from '../loop/turn-owner.ts'
import { type GenerationRow, generationKind, type OpenStep } from '../model.ts'
import { startPaused } from '../store.ts'
import { notifyEnd } from '../streams/turn-end.ts'
import { createTurnWithoutWakeUp, type TurnInput } from './create.ts'
import { requiredAction } from './turn-result.ts'

/**
 * Inserts a turn that starts paused, with one tool call for its client that no model requested, and continues with the
 * submitted output. Raises errors of createTurn.
 */
export async function createPausedTurn(
  tx: Tx,
  services: Services,
  input: TurnInput & { agent_version: number },
  call: { tool_name: string; args: Record<string, unknown> },
): Promise<{ generation_id: string; trace_id: string }> {
  const { generation_id, trace_id } = await createTurnWithoutWakeUp(tx, services, input)
  const generation = await generationKind.lock(tx, generation_id)
  const now = systemClock.now().toISOString()
  const step: OpenStep = {
    n: 1,
    text: null,
    finish_reason: 'tool-calls',
    model: null,
    ai_provider_id: null,
    tool_calls: [{ id: `call_${randomUUID().replaceAll('-', '')}`, ...call }],
    usage: null,
    started_at: now,
  }
  const required_action = requiredAction(step, [{ position: 0, args: call.args }])
  const paused: GenerationRow = {
    ...generation,
    status: 'requires_action',
    required_action: generation.content_mode === 'none' ? null : required_action,
    agent_version: input.agent_version,
    started_at: now,
    last_activity_at: now,
    updated_at: now,
  }
  await startPaused(tx, paused, journalRows(services, generation, [{ n: 1, position: 0, value: step }]))
  emitPaused(tx, paused)
  notifyEnd(tx, paused.id)
  await turnOwnerOf(paused)?.paused?.(tx, paused)
  return { generation_id, trace_id }
}
