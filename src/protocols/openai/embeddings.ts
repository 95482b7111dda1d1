import { z } from 'zod'
import { estimatedTokens } from '#control/usage/meter.ts'
import { operations } from '#core/api/operation.ts'
import { parse } from '#core/api/validate.ts'
import { raiseInvalid } from '#core/base/errors.ts'
import { unknownFields } from './chat-request.ts'
import { sendJson, setIgnored } from './response.ts'
import { invokeOperation, type OpenAiSession } from './session.ts'

/** Most texts of one call of the operation. */
const BATCH = 256

const text = z.string('must be a text; lists of tokens are not supported')
const EmbeddingsRequest = z.object({
  model: z.string().nullish(),
  input: z.union([text, z.array(text).min(1).max(2048)], 'must be a text or a list of texts'),
  encoding_format: z.enum(['float', 'base64']).nullish(),
  dimensions: z.int().nullish(),
  user: z.unknown().optional(),
})

type Embedded = { embeddings: number[][]; model: string; dimensions: number }

/** Returns a vector as the bytes of little-endian 32-bit floats. */
function base64Of(vector: readonly number[]): string {
  const bytes = Buffer.alloc(vector.length * 4)
  for (const [index, value] of vector.entries()) bytes.writeFloatLE(value, index * 4)
  return bytes.toString('base64')
}

/** Handles POST /embeddings. */
export async function createEmbeddings(session: OpenAiSession): Promise<void> {
  const body = await session.exchange.readJson()
  const { input, encoding_format, dimensions } = parse(EmbeddingsRequest, body ?? {})
  const texts = typeof input === 'string' ? [input] : input
  const { project } = session
  const vectors: number[][] = []
  let model = ''
  for (let from = 0; from < texts.length; from += BATCH) {
    const inputs = texts.slice(from, from + BATCH)
    const { body: embedded } = await invokeOperation(session, operations.get('createEmbeddings'), {
      body: { inputs, ...(project !== null && { project_id: project }) },
    })
    const found = embedded as Embedded
    if (dimensions != null && dimensions !== found.dimensions)
      raiseInvalid({ code: 'INVALID_VALUE', path: 'dimensions', message: `must be ${found.dimensions}` })
    model = found.model
    vectors.push(...found.embeddings)
  }
  setIgnored(session, unknownFields(body, EmbeddingsRequest.shape))
  const tokens = estimatedTokens(texts.reduce((sum, each) => sum + each.length, 0))
  sendJson(session, {
    object: 'list',
    data: vectors.map((vector, index) => ({
      object: 'embedding',
      index,
      embedding: encoding_format === 'base64' ? base64Of(vector) : vector,
    })),
    model,
    usage: { prompt_tokens: tokens, total_tokens: tokens },
  })
}
