import { parseExactJson } from '#core/base/exact-json.ts'
import { countTokens } from '#local/double/reply.ts'
import { smallestValue } from '#local/double/schema.ts'
import type { Reply as DoubleReply } from '#local/double/script.ts'
import type { Call } from './rules.ts'

/** Lines that a stream may contain without meaning. */
export type Noise = 'comments' | 'empty' | 'crlf'

/** A scripted answer, in the spelling of `llm-double`; the rest is what real vendors do. */
export type Reply = Pick<
  DoubleReply,
  'text' | 'reasoning' | 'tool_calls' | 'chunks' | 'usage' | 'delay_ms' | 'chunk_delay_ms' | 'stream_error' | 'headers'
> & {
  /** With `stream_error`, it is a frame of the stream. */
  error?: { status: number; message?: string; code?: string; type?: string; retry_after?: number | string }
  /** Finish reason in the spelling of the vendor. */
  finish?: string
  /** A message before the text, where a vendor gives several: the text is then the final answer. */
  commentary?: string
  /** Details of a refusal. */
  refusal?: { category: string; explanation: string }
  /**
   * Web searches that the vendor makes itself before it answers; without a result if it is still to come. The text of the answer
   * cites the `cited` pages.
   */
  searches?: { query: string; limit?: unknown; found?: string; cited?: string }[]
  /** Whether the reasoning arrives encrypted. */
  redacted?: boolean
  /** What the vendor bills besides the tokens of `usage`, or as parts of them, and how it served the answer. */
  billed?: Billed
  noise?: readonly Noise[]
  /** Ends the stream after this many frames, with its connection if `reset`. */
  cut?: { after: number; reset?: boolean }
}

export type Billed = {
  /** Tokens written to the cache, and how many of them for an hour or twelve. */
  written?: number
  written_1h?: number
  written_12h?: number
  /** Tokens of media in the prompt (cached ones included), in its cached part, and in the answer. */
  audio?: { input?: number; cached?: number; output?: number }
  image?: { input?: number; cached?: number; output?: number }
  searches?: number
  /** Whether the count of the output leaves the reasoning out. */
  reasoning_apart?: boolean
  tier?: string
  model?: string
}

/** Probabilities of the tokens of a text, with the `top` likeliest ones, as OpenAI (2026-11, S) and vLLM (S) write them. */
export const logprobsOf = (chunks: readonly string[], top: number) =>
  chunks.map(token => {
    const bytes = [...Buffer.from(token)]
    const likely = Array.from({ length: top }, (_, n) => ({
      token: n === 0 ? token : `${token}${n}`,
      logprob: -0.25 - n,
      bytes,
    }))
    return { token, logprob: -0.25, bytes, top_logprobs: likely }
  })

/** Replies in order, of which the last is repeated; or a reply for each call. */
export type Plan = Reply | readonly Reply[] | ((call: Call, n: number) => Reply)

/** Returns the reply of a plan to its call number `n`, from 0. */
export function replyOf(plan: Plan, call: Call, n: number): Reply {
  if (typeof plan === 'function') return plan(call, n)
  const list = Array.isArray(plan) ? (plan as readonly Reply[]) : [plan as Reply]
  return list[Math.min(n, list.length - 1)]!
}

/** Tokens of an answer; `output` includes the reasoning, the input counts do not overlap. */
export type Usage = { input: number; cached: number; written: number; output: number; reasoning: number }

/** The parts of an answer, before a vendor formats them. */
export type Answer = {
  id: string
  /** Text in the pieces of its stream. */
  chunks: string[]
  text: string
  reasoning: string | null
  redacted: boolean
  /** `args` is JSON text, or the text of a call that was cut. */
  calls: { id: string; name: string; args: string }[]
  finish: string | null
  commentary: string | null
  refusal: { category: string; explanation: string } | null
  searches: { id: string; query: string; limit?: unknown; found?: string; cited?: string }[]
  usage: Usage | null
  billed: Billed
}

/** Returns arguments in the pieces of a stream. */
export const pieces = (args: string): string[] => args.match(/[\s\S]{1,12}/g) ?? []

/** Returns arguments as a value; arguments of a cut call are the empty object. */
export function parsedArgs(args: string): unknown {
  try {
    return parseExactJson(args)
  } catch {
    return {}
  }
}

/** What a request demands, read from the format of a vendor. */
export type Demand = {
  tools: { name: string; schema: unknown }[]
  /** Tool that must be called: a name, or true for any. */
  forced: string | boolean
  /** Schema of the answer. */
  schema: unknown
}

/** Returns the reply to a call without a plan: the forced call, the smallest value of the schema, or a text. */
export function defaultReply({ tools, forced, schema }: Demand): Reply {
  const tool = forced === true ? tools[0] : tools.find(({ name }) => name === forced)
  if (tool) return { tool_calls: [{ name: tool.name, args: smallestValue(tool.schema) ?? {} }] }
  return { text: schema ? JSON.stringify(smallestValue(schema)) : 'a fine answer' }
}

/** Replaces the name `*` of calls by the first tool that the request offers, with the smallest arguments by default. */
export function callOffered(reply: Reply, { tools: [tool] }: Demand): Reply {
  if (!reply.tool_calls?.some(({ name }) => name === '*')) return reply
  const tool_calls = reply.tool_calls.map(call =>
    call.name === '*'
      ? { ...call, name: tool?.name ?? 'none', args: call.args ?? smallestValue(tool?.schema) ?? {} }
      : call,
  )
  return { ...reply, tool_calls }
}

let answers = 0

/** Composes an answer. `callId` makes the ID of a tool call from a number that no other call has. */
export function compose(reply: Reply, call: Call, callId: (n: number) => string, cache: CacheUse): Answer {
  const n = ++answers
  const text = reply.chunks?.join('') ?? reply.text ?? ''
  const calls = (reply.tool_calls ?? []).map(({ id, name, args, raw }, index) => ({
    id: id ?? callId(n * 100 + index),
    name,
    args: raw ?? JSON.stringify(args ?? {}),
  }))
  return {
    id: String(n).padStart(8, '0'),
    chunks: reply.chunks ?? text.match(/\s*\S+\s*|\s+/g) ?? [],
    text,
    reasoning: reply.reasoning ?? null,
    redacted: reply.redacted ?? false,
    calls,
    finish: reply.finish ?? null,
    commentary: reply.commentary ?? null,
    refusal: reply.refusal ?? null,
    searches: (reply.searches ?? []).map((search, index) => ({ id: `srvtoolu_${n}0${index}`, ...search })),
    usage: reply.usage === null ? null : usageOf(reply, call, text, calls, cache),
    billed: reply.billed ?? {},
  }
}

/** Tokens that the cache of a vendor gave and took. */
export type CacheUse = { cached: number; written: number }

function usageOf(reply: Reply, call: Call, text: string, calls: Answer['calls'], cache: CacheUse): Usage {
  const { prompt_tokens, completion_tokens, cached_tokens, reasoning_tokens } = reply.usage ?? {}
  const cached = cached_tokens ?? cache.cached
  const stored = reply.billed?.written ?? cache.written
  const whole = prompt_tokens ?? countTokens(JSON.stringify(call.body))
  const reasoning = reasoning_tokens ?? countTokens(reply.reasoning ?? '')
  const written = countTokens(text) + calls.reduce((sum, { name, args }) => sum + countTokens(name + args), 0)
  return {
    input: Math.max(0, whole - cached - stored),
    cached,
    written: stored,
    output: completion_tokens ?? written + reasoning,
    reasoning,
  }
}
