import type { AgentConverter, Conversion } from '../../content/rules/convert.ts'
import { AppError, type RecordedFailure, raise } from '../../core/api/errors.ts'
import type { Services } from '../../core/process/services.ts'
import { generationKind } from '../generations/model.ts'
import { consumeShareForTurn } from '../generations/request/admission.ts'
import { abortTurn } from '../generations/request/cancel-turn.ts'
import { createTurn } from '../generations/request/create.ts'
import { subscribeTurn, type TurnEndState } from '../generations/request/wait-for-turn.ts'
import { findAgent } from './model.ts'

const INSTRUCTION =
  'Extract all text of the attached file verbatim. Answer with plain text only, and with nothing else.'

/** What a worker says of a turn that is past its deadline. */
const TOO_LATE = { code: 'GENERATION_FAILED', message: 'The turn took too long', meta: { reason: 'deadline' } }

type Asked = Omit<Conversion, 'callback'> & { project_id: string; agent_id: string }

/** Lets an agent convert a file: one ordinary generation each. */
export const convertByAgent: AgentConverter = async (services, asked) => {
  // Drawn from the attempt's, so that another worker of the attempt finds the generation that was made for it.
  const id = `${generationKind.prefix}_${asked.attempt_id.slice(-26)}`
  try {
    if (!(await generationKind.find(services.pool, id))) await makeTurn(services, id, asked)
    return answerOf(await endOf(services, id, asked.signal))
  } catch (error) {
    if (!(error instanceof AppError)) throw error
    return { ok: false, error: error.recorded() }
  }
}

/** Makes the generation. Raises what refuses a turn. */
async function makeTurn(services: Services, id: string, asked: Asked): Promise<void> {
  const limit = services.config.CONVERTER_TIMEOUT_MS
  await services.write(async tx => {
    const agent = await findAgent(tx, asked.agent_id)
    if (!agent) return raise('AGENT_NOT_FOUND', { meta: { id: asked.agent_id } })
    await consumeShareForTurn(tx, services, asked.project_id, agent)
    await createTurn(tx, services, {
      generation_id: id,
      project_id: asked.project_id,
      agent_id: asked.agent_id,
      messages: [
        {
          role: 'user',
          content: [
            { type: 'text', text: INSTRUCTION },
            { type: 'file', file_id: asked.file.id },
          ],
        },
      ],
      source: 'ingestion',
      authority: asked.principal,
      // Whoever may ingest the document may have it converted by the agent that a rule names.
      permission: { action: 'documents:IngestDocument', kind: 'document', id: asked.document_id },
      streamed: false,
      shape: 'agent',
      deadline_at: new Date(Date.now() + limit).toISOString(),
    })
  })
}

/** The end of the generation, which is forced when no worker brings it about in time. Throws the reason of `signal`. */
async function endOf(services: Services, id: string, signal: AbortSignal): Promise<TurnEndState> {
  const late = AbortSignal.timeout(services.config.CONVERTER_TIMEOUT_MS)
  const closed = AbortSignal.any([signal, late])
  for (;;) {
    const ended = await subscribeTurn(services, id).wait({ closed })
    if (ended) return ended
    signal.throwIfAborted()
    if (late.aborted)
      await services.write(tx => abortTurn(tx, services, id, TOO_LATE, { stop_reason: 'cancelled', force: true }))
  }
}

function answerOf({ id, trace_id, status, result, failure }: TurnEndState) {
  const about = { generation_id: id, trace_id }
  const failed = ({ code, message, meta }: RecordedFailure) => ({
    ok: false as const,
    error: { code, message, meta: { ...meta, ...about } },
  })
  if (failure) return failed(failure)
  const text = (result as { output: { content: string } | null } | null)?.output?.content ?? ''
  if (/\S/.test(text)) return { ok: true as const, text }
  const reason = status === 'completed' ? 'no_text' : status
  return failed({ code: 'GENERATION_FAILED', message: 'The agent answered no text', meta: { reason } })
}
