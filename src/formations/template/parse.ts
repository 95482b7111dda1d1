import { storabilityProblem } from '#core/api/validate.ts'
import type { Problem } from '#core/base/errors.ts'
import { parseExactJson } from '#core/base/exact-json.ts'
import { excessOfJson } from '#core/base/json-limits.ts'
import type { Services } from '#core/base/services.ts'
import { threadTask } from '#core/threads/pool.ts'
import { threads } from '#core/threads/threads.ts'
import { MAX_BYTES, type Parsed as ParsedYaml, parseYaml, refused, type run, tooLarge } from './yaml.ts'

export type Parsed = { value: unknown } | { problem: Problem }

/** Longest YAML text that is parsed on the event loop: up to 20 ms. */
const BRIEF_CHARS = 4096

const yamlTask = threadTask<{ run: typeof run }>('templates', new URL('./yaml.ts', import.meta.url))

/**
 * Parses a template: an object of the request body, or a string in YAML 1.2, which includes JSON.
 * @param project whose share of the threads it uses
 * @throws SERVICE_NOT_READY if no thread is free
 */
export async function parseTemplate(services: Services, project: string, source: unknown): Promise<Parsed> {
  if (typeof source !== 'string') return limited(source)
  if (Buffer.byteLength(source) > MAX_BYTES) return tooLarge
  const json = parseJsonObject(source)
  if (json !== undefined) return limited(json)
  const parsed = source.length <= BRIEF_CHARS ? parseYaml(source) : await parseInThread(services, project, source)
  return 'json' in parsed ? limited(parseExactJson(parsed.json)) : parsed
}

async function parseInThread(services: Services, project: string, input: string): Promise<ParsedYaml> {
  const outcome = await threads(services).run({ task: yamlTask, project, input, length: input.length })
  if ('output' in outcome) return outcome.output
  const limit = outcome.broke === 'time' ? 'long' : 'much memory'
  return refused('TOO_LARGE', `takes too ${limit} to parse; send it as JSON`)
}

/** Limits a parsed template as JSON bodies are limited, and its bytes. */
function limited(value: unknown): Parsed {
  const problem = storabilityProblem(value)
  if (problem) return { problem }
  const json = Buffer.from(JSON.stringify(value ?? null))
  if (json.length > MAX_BYTES) return tooLarge
  const excess = excessOfJson(json)
  return excess ? { problem: excess } : { value }
}

/** Parses a text as a JSON object; undefined for any other text. */
function parseJsonObject(text: string): unknown {
  if (!text.trimStart().startsWith('{')) return undefined
  try {
    return parseExactJson(text)
  } catch {
    return undefined
  }
}
