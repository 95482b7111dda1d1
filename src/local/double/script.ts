import { parseAllDocuments } from 'yaml'
import { z } from 'zod'

const millis = z.number().int().min(0).max(600_000)
const count = z.number().int().min(0)
const status = z.number().int().min(200).max(599)
const name = z.string().min(1).max(200)

/** Name of a lane, used as a path segment, a bearer token and the part of a model name before its first slash. */
const laneName = z.string().regex(/^[^\s/\p{Cc}]{1,200}$/u, 'must be 1 to 200 characters without spaces or slashes')

const headerName = z.string().regex(/^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/, 'is not a header name')
const headerValue = z.string().regex(/^[\t\x20-\x7e\x80-\xff]*$/, 'is not a header value')

const textCondition = z.union([
  z.string(),
  z
    .strictObject({
      equals: z.string().optional(),
      contains: z.string().optional(),
      regex: z.string().optional(),
      flags: z
        .string()
        .regex(/^[dimsuv]*$/, 'may contain only d, i, m, s, u, v')
        .optional(),
    })
    .superRefine((value, context) => {
      if (value.equals === undefined && value.contains === undefined && value.regex === undefined)
        context.addIssue({ code: 'custom', message: 'needs equals, contains or regex' })
      if (value.regex === undefined) {
        if (value.flags !== undefined) context.addIssue({ code: 'custom', path: ['flags'], message: 'needs regex' })
        return
      }
      try {
        new RegExp(value.regex, value.flags)
      } catch (error) {
        context.addIssue({ code: 'custom', path: ['regex'], message: (error as Error).message })
      }
    }),
])

const match = z.strictObject({
  kind: z.enum(['chat', 'embeddings']).optional(),
  model: z.string().optional(),
  call: z.union([count, z.strictObject({ from: count.optional(), to: count.optional() })]).optional(),
  user: textCondition.optional(),
  system: textCondition.optional(),
  any: textCondition.optional(),
  last_role: z.string().optional(),
  messages: z.union([count, z.strictObject({ min: count.optional(), max: count.optional() })]).optional(),
  tool_result: z
    .strictObject({
      name: z.string().optional(),
      contains: z.string().optional(),
      equals: z.string().optional(),
    })
    .optional(),
  tools: z.array(z.string()).optional(),
  tool_choice: z.union([z.enum(['auto', 'required', 'none']), z.strictObject({ name: z.string() })]).optional(),
  stream: z.boolean().optional(),
  json: z.boolean().optional(),
  header: z.record(z.string(), textCondition).optional(),
  temperature: z.number().optional(),
})

const failure = z.strictObject({
  status,
  message: z.string().optional(),
  type: z.string().optional(),
  body: z.unknown().optional(),
  retry_after: z.number().min(0).optional(),
})

const reply = z
  .strictObject({
    text: z.string().optional(),
    reasoning: z.string().optional(),
    tool_calls: z
      .array(
        z.strictObject({
          name: z.string(),
          args: z.unknown().optional(),
          id: z.string().optional(),
          raw: z.string().optional(),
        }),
      )
      .optional(),
    object: z.unknown().optional(),
    finish: z.string().optional(),
    usage: z
      .strictObject({
        prompt_tokens: count.optional(),
        completion_tokens: count.optional(),
        cached_tokens: count.optional(),
        reasoning_tokens: count.optional(),
      })
      .nullable()
      .optional(),
    model: z.string().optional(),
    headers: z.record(headerName, headerValue).optional(),
    chunks: z.array(z.string()).optional(),
    chunk_words: z.number().int().min(1).optional(),
    delay_ms: millis.optional(),
    chunk_delay_ms: millis.optional(),
    gate: name.optional(),
    gate_after: count.optional(),
    error: failure.optional(),
    stream_error: z.strictObject({ after: count, message: z.string() }).optional(),
    cut: z.strictObject({ after: count }).optional(),
    corrupt: z.enum(['json', 'sse', 'empty']).optional(),
  })
  .superRefine((value, context) => {
    if (value.text !== undefined && value.object !== undefined)
      context.addIssue({ code: 'custom', path: ['object'], message: 'excludes text' })
    if (value.chunks !== undefined && value.object !== undefined)
      context.addIssue({ code: 'custom', path: ['chunks'], message: 'excludes object' })
    // The pieces of a stream must join to the whole answer.
    if (value.chunks !== undefined && value.text !== undefined && value.chunks.join('') !== value.text)
      context.addIssue({ code: 'custom', path: ['chunks'], message: 'must join to text' })
    if (value.gate_after !== undefined && value.gate === undefined)
      context.addIssue({ code: 'custom', path: ['gate_after'], message: 'needs gate' })
  })

const rule = z
  .strictObject({
    id: name.optional(),
    when: match.optional(),
    reply: reply.optional(),
    replies: z.array(reply).min(1, 'needs at least one reply').optional(),
    then: z.enum(['stick', 'cycle', 'end']).optional(),
    times: z.number().int().min(1).optional(),
  })
  .superRefine((value, context) => {
    if (value.reply === undefined && value.replies === undefined)
      context.addIssue({ code: 'custom', path: ['replies'], message: 'is required' })
    if (value.reply !== undefined && value.replies !== undefined)
      context.addIssue({ code: 'custom', path: ['reply'], message: 'excludes replies' })
  })

const embeddings = z.strictObject({
  alias: z.record(z.string(), z.string()).optional(),
  pin: z.record(z.string(), z.array(z.number())).optional(),
  error: failure.optional(),
  times: z.number().int().min(1).optional(),
  gate: name.optional(),
  delay_ms: millis.optional(),
})

const script = z
  .strictObject({
    lane: laneName,
    strict: z.boolean().optional(),
    models: z.array(z.string()).optional(),
    defaults: reply.optional(),
    rules: z.array(rule).optional(),
    fallback: reply.optional(),
    embeddings: embeddings.optional(),
  })
  .superRefine((value, context) => {
    const seen = new Set<string>()
    for (const [index, each] of (value.rules ?? []).entries()) {
      const id = ruleId(each, index)
      if (seen.has(id))
        context.addIssue({ code: 'custom', path: ['rules', index, 'id'], message: `"${id}" is used twice` })
      seen.add(id)
    }
  })

const directive = z.union([reply, z.array(reply).min(1, 'needs at least one reply')])

/** A condition on a text; a bare string means "contains". */
export type TextCondition = z.infer<typeof textCondition>
/** Conditions of a rule, all of which must be satisfied. */
export type Match = z.infer<typeof match>
/** A scripted HTTP failure. */
export type Failure = z.infer<typeof failure>
/** A scripted answer. */
export type Reply = z.infer<typeof reply>
/** A condition and its answers. */
export type DoubleRule = z.infer<typeof rule>
/** The behaviour of one lane. */
export type Script = z.infer<typeof script>

/** Returns the ID of a rule, or its position in the script, such as `rules[0]`. */
export function ruleId(each: { id?: string | undefined }, index: number): string {
  return each.id ?? `rules[${index}]`
}

/** Checks a parsed script. Returns the script, or its problems as `path: message`. */
export function checkScript(value: unknown): { script?: Script; problems: string[] } {
  const result = script.safeParse(value)
  return result.success ? { script: result.data, problems: [] } : { problems: problemsOf(result.error.issues) }
}

/** Checks the JSON value of an inline directive, a reply or a list of replies. Returns a list with at least one. */
export function checkDirective(value: unknown): { replies?: Reply[]; problems: string[] } {
  const result = directive.safeParse(value)
  if (!result.success) return { problems: problemsOf(result.error.issues) }
  return { replies: Array.isArray(result.data) ? result.data : [result.data], problems: [] }
}

/**
 * Reads scripts from JSON or YAML text, one lane per YAML document. Problems are `path: message`; with several
 * documents the path starts with `documents[n]`. Invalid scripts are omitted.
 */
export function parseScripts(text: string): { scripts: Script[]; problems: string[] } {
  const { values, problems } = readDocuments(text)
  if (problems.length > 0) return { scripts: [], problems }
  if (values.length === 0) return { scripts: [], problems: ['document: contains no script'] }
  const scripts: Script[] = []
  const lanes = new Set<string>()
  for (const [index, value] of values.entries()) {
    const prefix = values.length > 1 ? `documents[${index}]` : ''
    const checked = checkScript(value)
    problems.push(...checked.problems.map(problem => (prefix ? join(prefix, problem) : problem)))
    if (!checked.script) continue
    if (lanes.has(checked.script.lane)) problems.push(`${prefix}.lane: "${checked.script.lane}" is used twice`)
    lanes.add(checked.script.lane)
    scripts.push(checked.script)
  }
  return { scripts, problems }
}

/** Parses JSON or YAML text into its documents, without empty ones. */
export function readDocuments(text: string): { values: unknown[]; problems: string[] } {
  try {
    return { values: [JSON.parse(text)], problems: [] }
  } catch {
    const documents = parseAllDocuments(text)
    const list = Array.isArray(documents) ? documents : []
    const problems = list.flatMap(document => document.errors.map(error => `document: ${firstLine(error.message)}`))
    if (problems.length > 0) return { values: [], problems }
    try {
      return { values: list.map(document => document.toJS()).filter(value => value != null), problems: [] }
    } catch (error) {
      return { values: [], problems: [`document: ${firstLine((error as Error).message)}`] }
    }
  }
}

function firstLine(text: string): string {
  return (text.split('\n', 1)[0] ?? text).replace(/:$/, '')
}

function join(prefix: string, problem: string): string {
  return problem.startsWith('[') || problem.startsWith('document:') ? `${prefix}${problem}` : `${prefix}.${problem}`
}

type Issue = z.core.$ZodIssue

function problemsOf(issues: readonly Issue[], base: readonly PropertyKey[] = []): string[] {
  return issues.flatMap(issue => {
    const path = [...base, ...issue.path]
    if (issue.code === 'unrecognized_keys') return issue.keys.map(key => `${pathText([...path, key])}: unknown key`)
    if (issue.code === 'invalid_union') {
      // The branch of the right type is the intended one: its problems name the inner path.
      const intended = issue.errors.find(branch => !branch.some(each => each.path.length === 0 && isTypeIssue(each)))
      if (intended && intended.length > 0) return problemsOf(intended, path)
    }
    if (issue.code === 'invalid_key') return issue.issues.map(each => `${pathText(path)}: ${each.message}`)
    return [`${pathText(path)}: ${issue.message}`]
  })
}

function isTypeIssue(issue: Issue): boolean {
  return issue.code === 'invalid_type' || issue.code === 'invalid_value'
}

function pathText(path: readonly PropertyKey[]): string {
  let text = ''
  for (const part of path) {
    if (typeof part === 'number') text += `[${part}]`
    else text += text ? `.${String(part)}` : String(part)
  }
  return text || 'document'
}
