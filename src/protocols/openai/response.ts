import type { OperationResult } from '#core/api/operation.ts'
import { AppError } from '#core/base/errors.ts'
import { setServiceHeader } from '#core/http/mounts.ts'
import { toRefusal } from '#core/invoke/refusal-mapping.ts'
import { ignoredParamsHeader } from '#execution/providers/ignored-params.ts'
import type { Visibility } from './chat-format.ts'
import { openAiError } from './error-body.ts'
import { isEndUser, type OpenAiSession } from './session.ts'
import type { TurnReport } from './turn-call.ts'

/** Names ignored fields in a header. */
export function setIgnored({ services, exchange }: OpenAiSession, names: readonly string[]): void {
  for (const [name, value] of Object.entries(ignoredParamsHeader(services, names))) exchange.res.setHeader(name, value)
}

/** Sets the headers of a turn: its session and the ignored fields. */
export function setReport(session: OpenAiSession, report: TurnReport, ignored: readonly string[]): void {
  if (report.session_id) setServiceHeader(session, 'Session-Id', report.session_id)
  setIgnored(session, [...ignored, ...report.ignored])
}

/** Returns the body of an error in a stream. Errors without a code are internal. */
export function errorFrame(session: OpenAiSession, error: unknown): { error: object } {
  const { config } = session.services
  const refusal = toRefusal(error) ?? new AppError('INTERNAL_ERROR', { cause: error })
  return openAiError(refusal, config.DOCS_BASE_URL, isEndUser(session)).body
}

export const visibilityFor = (session: OpenAiSession): Visibility => {
  const visible = !isEndUser(session)
  return { usage: visible, reasoning: visible, version: visible }
}

export const sendJson = ({ exchange }: OpenAiSession, body: unknown, status = 200): void =>
  exchange.end(status, JSON.stringify(body))

/** Sends a stream with its headers. */
export function sendStream({ exchange }: OpenAiSession, { headers, stream }: OperationResult): void {
  for (const [name, value] of Object.entries(headers ?? {})) exchange.res.setHeader(name, value)
  if (stream) exchange.stream(200, 'text/event-stream; charset=utf-8', stream)
}
