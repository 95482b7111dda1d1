import type { Problem } from '../../core/api/errors.ts'
import type { Services } from '../../core/process/services.ts'
import { outputProblems } from '../agents/schema.ts'
import { storableValue } from '../providers/storable.ts'

const FENCE = '```'

/** A text minus one markdown fence around all of it; in time that grows with the text only. */
function withoutFence(text: string): string {
  const trimmed = text.trim()
  const first = trimmed.slice(0, trimmed.indexOf('\n') + 1)
  if (!/^```[\w-]*\s*\n$/.test(first) || !trimmed.endsWith(FENCE)) return trimmed
  return trimmed.slice(first.length, -FENCE.length).trim()
}

/** The final answer as the object its schema asks for. Raises as outputProblems does. */
export async function readObject(
  services: Services,
  projectId: string,
  text: string,
  schema: object,
): Promise<{ ok: true; object: unknown } | { ok: false; problems: Problem[] }> {
  let value: unknown
  try {
    value = storableValue(JSON.parse(withoutFence(text)))
  } catch {
    return { ok: false, problems: [{ code: 'NOT_JSON', path: '', message: 'the answer is not JSON' }] }
  }
  const problems = await outputProblems(services, projectId, schema, value)
  return problems.length === 0 ? { ok: true, object: value } : { ok: false, problems }
}
