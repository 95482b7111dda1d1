import type { Frame } from './frames.ts'
import { declarationsOf, geminiRules } from './gemini-rules.ts'
import { type Answer, parsedArgs } from './plan.ts'
import { seal } from './signatures.ts'
import type { Failure, Simulator } from './simulator.ts'

const STATUSES: Record<number, string> = {
  400: 'INVALID_ARGUMENT',
  401: 'UNAUTHENTICATED',
  403: 'PERMISSION_DENIED',
  404: 'NOT_FOUND',
  429: 'RESOURCE_EXHAUSTED',
  500: 'INTERNAL',
  503: 'UNAVAILABLE',
}

const errorBody = ({ status, message, retry_after }: Failure) => ({
  error: {
    code: status,
    message,
    status: STATUSES[status] ?? 'UNKNOWN',
    ...(retry_after !== undefined && {
      details: [{ '@type': 'type.googleapis.com/google.rpc.RetryInfo', retryDelay: `${retry_after}s` }],
    }),
  },
})

/** Parts of an answer: the thought, the pieces of the text, the calls, of which the first has the signature. */
function partsOf({ reasoning, chunks, calls }: Answer): object[] {
  const thoughtSignature = seal(reasoning ?? 'thought')
  return [
    ...(reasoning ? [{ text: reasoning, thought: true }] : []),
    ...chunks.map(text => ({ text })),
    ...calls.map(({ id, name, args }, index) => ({
      functionCall: { id, name, args: parsedArgs(args) },
      ...(index === 0 && { thoughtSignature }),
    })),
  ]
}

const modalities = (counts: Record<string, number | undefined>) =>
  Object.entries(counts).flatMap(([modality, tokenCount]) => (tokenCount ? [{ modality, tokenCount }] : []))

function detailsOf({ usage, billed: { audio = {}, image = {} } }: Answer) {
  if (!usage) return {}
  const of = (whole: number, heard = 0, seen = 0) =>
    modalities({ TEXT: whole - heard - seen, AUDIO: heard, IMAGE: seen })
  const cached = of(usage.cached, audio.cached, image.cached)
  return {
    promptTokensDetails: of(usage.input + usage.cached, audio.input, image.input),
    ...(cached.length > 0 && { cacheTokensDetails: cached }),
    ...(audio.output || image.output
      ? { candidatesTokensDetails: of(usage.output - usage.reasoning, audio.output, image.output) }
      : {}),
  }
}

const usageOf = ({ usage, ...answer }: Answer) =>
  usage && {
    promptTokenCount: usage.input + usage.cached,
    ...(usage.cached > 0 && { cachedContentTokenCount: usage.cached }),
    candidatesTokenCount: usage.output - usage.reasoning,
    ...(usage.reasoning > 0 && { thoughtsTokenCount: usage.reasoning }),
    totalTokenCount: usage.input + usage.cached + usage.output,
    ...detailsOf({ usage, ...answer }),
    ...(answer.billed.tier && { serviceTier: answer.billed.tier }),
  }

/** The queries of a search with Google, which it names without their number. */
const grounding = ({ billed: { searches = 0 } }: Answer) =>
  searches > 0
    ? { groundingMetadata: { webSearchQueries: Array.from({ length: searches }, (_, n) => `query ${n}`) } }
    : {}

const chunk = (answer: Answer, model: string, parts: object[], last: boolean) => {
  const usageMetadata = usageOf(answer)
  return {
    candidates: [
      {
        ...(parts.length > 0 && { content: { parts, role: 'model' } }),
        ...(last && { finishReason: answer.finish ?? 'STOP' }),
        ...(last && grounding(answer)),
        index: 0,
      },
    ],
    ...(last && usageMetadata && { usageMetadata }),
    modelVersion: answer.billed.model ?? model,
    responseId: answer.id,
  }
}

function simulator(name: string): Simulator {
  return {
    name,
    rules: geminiRules,
    read(path) {
      const [, model, method] = /\/models\/([^/:]+):(generateContent|streamGenerateContent)/.exec(path) ?? []
      return model ? { model, stream: method === 'streamGenerateContent' } : null
    },
    demand: body => ({
      tools: declarationsOf({ body }),
      forced:
        body.toolConfig?.functionCallingConfig?.mode === 'ANY' &&
        (body.toolConfig.functionCallingConfig.allowedFunctionNames?.[0] ?? true),
      schema: body.generationConfig?.responseJsonSchema ?? body.generationConfig?.responseSchema,
    }),
    error: failure => ({ status: failure.status, body: errorBody(failure) }),
    whole: (answer, { model }) => chunk(answer, model, partsOf(answer), true),
    frames(answer, { model }): Frame[] {
      const parts = partsOf(answer)
      const each = parts.length > 0 ? parts.map(part => [part]) : [[]]
      return each.map((part, index) => ({ data: chunk(answer, model, part, index === each.length - 1) }))
    },
    errorFrame: failure => ({ data: errorBody(failure) }),
    callId: n => `call-${n}`,
    listing: {
      models: [
        { name: 'models/gemini-3-pro', displayName: 'Gemini 3 Pro', supportedGenerationMethods: ['generateContent'] },
      ],
    },
  }
}

/** The Gemini API. */
export const gemini = simulator('gemini')

/** The same API on Vertex AI. */
export const vertex = simulator('vertex')
