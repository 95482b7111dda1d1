import type { z } from 'zod'
import type { Context, OperationResult } from '#core/api/operation.ts'
import { raise, raiseInvalid } from '#core/base/errors.ts'
import { addBoundsOf } from '#core/iam/authority.ts'
import { principalRecord } from '#core/iam/caller.ts'
import type { Tx } from '#core/writes/writer.ts'
import { isRefused, type ModelMessage } from '#execution/providers/model-messages.ts'
import { type GenerationRow, generationKind, type JournalStepRow, type RetryInput } from '../model.ts'
import { readSteps } from '../traces/file.ts'
import { admitTurn } from './admission.ts'
import { mailboxHooks } from './cancel-turn.ts'
import { createTurn, type TurnInput, turnOrigin } from './create.ts'
import { admitFiles } from './message-files.ts'
import { createdStatus, respondWithTurn, responseMode, waitOf } from './respond.ts'
import { stepMessages } from './turn-result.ts'

/**
 * Retries a failed generation as a new one in the same trace, initiated by the failed one. The new turn gets the input
 * of the failed one and its steps whose tool calls have results, so that none of them is repeated. A turn of a
 * conversation is placed in its mailbox and reads the current messages.
 * @throws GENERATION_CONTENT_UNAVAILABLE if the content was erased or never stored, GENERATION_ALREADY_IN_PROGRESS if
 *   the generation has not ended, VALIDATION_FAILED if it completed; errors of createTurn; with `wait` the failure of
 *   the turn
 */
export async function retryGeneration(
  context: Context<{ wait?: boolean }, z.output<typeof RetryInput> | undefined, GenerationRow>,
): Promise<OperationResult> {
  const { services, caller, body, query, resource } = context
  const mode = responseMode(body?.stream, query.wait)
  // Before the transaction, which holds a connection. The steps of a failed turn never change.
  const steps = resource.status === 'failed' ? await readSteps(services, resource) : []
  return respondWithTurn(context, mode, generation_id =>
    services.write(async tx => {
      const agent = await admitTurn(tx, services, resource)
      const failed = await requireRetryable(tx, resource)
      await admitFiles(tx, context, failed.project_id, failed.input ?? [])
      if (mode === 'stream' && agent.output_schema) raise('OUTPUT_SCHEMA_STREAMING_UNSUPPORTED')
      const input: TurnInput = {
        generation_id,
        project_id: failed.project_id,
        agent_id: failed.agent_id,
        ...(failed.conversation_id === null ? { agent_version: agent.version } : {}),
        messages: failed.input,
        settled: settledSteps(steps),
        metadata: failed.metadata,
        action_id: failed.action_id,
        ...turnOrigin(failed),
        trace_id: failed.trace_id,
        initiator_generation_id: failed.id,
        authority: addBoundsOf(principalRecord(caller), failed.authority),
        streamed: mode === 'stream',
        ...waitOf(mode),
        shape: failed.shape,
      }
      const inMailbox = failed.conversation_id === null ? null : mailboxHooks.only()
      const made = inMailbox
        ? await inMailbox.retry(tx, services, failed, input)
        : await createTurn(tx, services, input)
      const { trace_id } = made
      context.record(tx, createdStatus(mode), { made: { generation_id: made.generation_id } })
      return { generation_id: made.generation_id, trace_id }
    }),
  )
}

/** Locks the generation and returns it if it can be retried; it must have ended before its steps were read. */
async function requireRetryable(tx: Tx, { id, status }: GenerationRow): Promise<GenerationRow> {
  const row = await generationKind.lock(tx, id)
  if (row.status === 'completed')
    raiseInvalid({
      code: 'INVALID_VALUE',
      path: 'generation_id',
      message: `generation ${id} is completed and cannot be retried`,
    })
  if (row.status !== 'failed' || status !== 'failed')
    raise('GENERATION_ALREADY_IN_PROGRESS', { meta: { generation_id: id } })
  if (row.content_redacted_at !== null || (row.input === null && row.shape === 'agent'))
    raise('GENERATION_CONTENT_UNAVAILABLE', { meta: { generation_id: id } })
  return row
}

/** Returns the messages of the settled steps with tool calls; an invalid or refused answer is requested again. */
const settledSteps = (steps: readonly JournalStepRow[]): ModelMessage[] =>
  steps.filter(step => step.tool_calls.length > 0 && !isRefused(step)).flatMap(stepMessages)
