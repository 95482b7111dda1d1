import type { AgentConverter, Conversion } from '#content/ingestion-rules/convert.ts'
import { timeIn } from '#core/base/clock.ts'
import { AppError, type RecordedFailure, raise } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import { findAgent } from '#execution/agents/model.ts'
import { generationKind } from '../model.ts'
import { consumeShareForTurn } from '../request/admission.ts'
import { abortTurn } from '../request/cancel-turn.ts'
import { createTurn } from '../request/create.ts'
import { subscribeTurn } from '../request/wait-for-turn.ts'
import type { TurnEnd } from '../streams/turn-end.ts'

const INSTRUCTION =
  'Extract all text of the attached file verbatim. Answer with plain text only, and with nothing else.'

/** Failure of a turn that exceeds its deadline. */
const DEADLINE_EXCEEDED = {
  code: 'GENERATION_FAILED',
  message: 'Turn exceeded its deadline',
  meta: { reason: 'deadline' },
}

type ConversionRequest = Omit<Conversion, 'callback'> & { project_id: string; agent_id: string }

/** Converts a file with one ordinary generation per conversion attempt. */
export const convertByAgent: AgentConverter = async (services, request) => {
  // Derived from the attempt id, so that another worker of the attempt finds the existing generation.
  const id = `${generationKind.prefix}_${request.attempt_id.slice(-26)}`
  try {
    if (!(await generationKind.find(services.pool, id))) await createConversionTurn(services, id, request)
    return toConversionResult(await waitForEnd(services, id, request.signal))
  } catch (error) {
    if (!(error instanceof AppError)) throw error
    return { ok: false, error: error.recorded() }
  }
}

/**
 * Creates the generation.
 * @throws the errors that refuse a turn
 */
async function createConversionTurn(services: Services, id: string, request: ConversionRequest): Promise<void> {
  const limit = services.config.CONVERTER_TIMEOUT_MS
  await services.write(async tx => {
    const agent = await findAgent(tx, request.agent_id)
    if (!agent) return raise('AGENT_NOT_FOUND', { meta: { id: request.agent_id } })
    await consumeShareForTurn(tx, services, request.project_id, agent)
    await createTurn(tx, services, {
      generation_id: id,
      project_id: request.project_id,
      agent_id: request.agent_id,
      messages: [
        {
          role: 'user',
          content: [
            { type: 'text', text: INSTRUCTION },
            { type: 'file', file_id: request.file.id },
          ],
        },
      ],
      source: 'ingestion',
      authority: request.principal,
      // The permission to ingest the document covers its conversion by the agent of the ingestion rule.
      permission: { action: 'documents:IngestDocument', kind: 'document', id: request.document_id },
      streamed: false,
      shape: 'agent',
      deadline_at: timeIn(limit).toISOString(),
    })
  })
}

/** Waits until the generation has settled, and aborts it after CONVERTER_TIMEOUT_MS. Throws the reason of `signal`. */
async function waitForEnd(services: Services, id: string, signal: AbortSignal): Promise<TurnEnd> {
  const timeout = AbortSignal.timeout(services.config.CONVERTER_TIMEOUT_MS)
  const closed = AbortSignal.any([signal, timeout])
  for (;;) {
    const ended = await subscribeTurn(services, id).wait({ closed })
    if (ended) return ended
    signal.throwIfAborted()
    if (timeout.aborted)
      await services.write(tx =>
        abortTurn(tx, services, id, DEADLINE_EXCEEDED, { stop_reason: 'cancelled', force: true }),
      )
  }
}

function toConversionResult({ id, trace_id, status, result, failure }: TurnEnd) {
  const references = { generation_id: id, trace_id }
  const failed = ({ code, message, meta }: RecordedFailure) => ({
    ok: false as const,
    error: { code, message, meta: { ...meta, ...references } },
  })
  if (failure) return failed(failure)
  const text = (result as { output: { content: string } | null } | null)?.output?.content ?? ''
  if (/\S/.test(text)) return { ok: true as const, text }
  const reason = status === 'completed' ? 'no_text' : status
  return failed({ code: 'GENERATION_FAILED', message: 'Agent returned no text', meta: { reason } })
}
