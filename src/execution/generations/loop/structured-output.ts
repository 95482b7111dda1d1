import { setTimeout as sleep } from 'node:timers/promises'
import { AppError, type Problem } from '#core/base/errors.ts'
import { parseExactJson } from '#core/base/exact-json.ts'
import type { Services } from '#core/base/services.ts'
import { storableValue } from '#core/base/storable-text.ts'
import { outputProblems } from '#execution/agents/schema.ts'

const FENCE = '```'

/** Removes a markdown fence around the whole text, in linear time. */
export function stripCodeFence(text: string): string {
  const trimmed = text.trim()
  const first = trimmed.slice(0, trimmed.indexOf('\n') + 1)
  if (!/^```[\w-]*\s*\n$/.test(first) || !trimmed.endsWith(FENCE)) return trimmed
  return trimmed.slice(first.length, -FENCE.length).trim()
}

/** Delay before a validation that timed out under CPU contention is retried. */
const RETRY_MS = 1000

/**
 * Parses and validates the final answer. The answer was billed, so a validation that times out under CPU contention is
 * retried until `signal` aborts.
 * @throws INVALID_OUTPUT_SCHEMA, the reason of `signal`
 */
export async function parseStructuredOutput(
  services: Services,
  projectId: string,
  { text, schema, signal }: { text: string; schema: object; signal: AbortSignal },
): Promise<{ ok: true; object: unknown } | { ok: false; problems: Problem[] }> {
  let value: unknown
  try {
    value = storableValue(parseExactJson(stripCodeFence(text)))
  } catch {
    return { ok: false, problems: [{ code: 'NOT_JSON', path: '', message: 'the answer is not JSON' }] }
  }
  for (;;) {
    try {
      const problems = await outputProblems(services, projectId, schema, value, signal)
      return problems.length === 0 ? { ok: true, object: value } : { ok: false, problems }
    } catch (error) {
      if (!(error instanceof AppError && error.code === 'SERVICE_NOT_READY')) throw error
      await sleep(RETRY_MS, undefined, { signal })
    }
  }
}
