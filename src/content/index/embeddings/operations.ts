import type { z } from 'zod'
import { type Context, combined, type Operation, operation } from '#core/api/operation.ts'
import { raise } from '#core/base/errors.ts'
import { sql } from '#core/db/sql.ts'
import { countOutdatedChunks } from '../words/rebuild.ts'
import { embedderOf } from './embedder.ts'
import { EmbeddingConfig, Embeddings, EmbeddingsInput, embeddingKind, MAX_TEXT_CHARACTERS } from './model.ts'
import { currentSpace } from './space.ts'
import { countOtherSpaceDocuments } from './store.ts'

const tag = 'Embeddings'

type Pending = z.output<typeof EmbeddingConfig>['reindex']

const create = operation({
  id: 'createEmbeddings',
  method: 'post',
  path: '/embeddings',
  summary: 'Embed texts',
  description: `Embeds one text as \`input\`, up to 256 as \`inputs\`, or both, with the embedding model of the deployment; at most ${MAX_TEXT_CHARACTERS} characters each.`,
  tag,
  action: 'embeddings:CreateEmbeddings',
  about: embeddingKind,
  reads: true,
  body: EmbeddingsInput,
  answers: { 200: Embeddings },
  raises: ['EMBEDDING_NOT_CONFIGURED', 'AI_PROVIDER_ERROR', 'QUOTA_EXCEEDED'],
  async run({ body, project, request, services }) {
    const embedder = embedderOf(services)
    if (!embedder.model) raise('EMBEDDING_NOT_CONFIGURED')
    const texts = [...(body.input === undefined ? [] : [body.input]), ...(body.inputs ?? [])]
    const vectors = await embedder.embed(texts, {
      project_id: project,
      purpose: { kind: 'api', ref: request.id },
      signal: request.closed,
      complete: true,
    })
    const rounded = vectors.map(vector => roundVector(vector as Float32Array))
    return {
      ...(body.input !== undefined && { embedding: rounded.shift() }),
      ...(body.inputs && { embeddings: rounded }),
      model: embedder.model.model,
      dimensions: embedder.model.dimensions,
    }
  },
})

/** Rounds to eight decimals: exceeds the precision of a float32 in a unit vector, at half the bytes. */
const roundVector = (vector: Float32Array): number[] => Array.from(vector, value => Math.round(value * 1e8) / 1e8)

/** Counts documents and chunks that are to be indexed again, in the projects in which the caller may embed. */
async function countPending({ db, services, visible }: Pick<Context, 'db' | 'services' | 'visible'>): Promise<Pending> {
  const space = await currentSpace(services)
  const pending = space
    ? await countOtherSpaceDocuments(
        db,
        space,
        visible({ project: sql.fragment`t.project_id`, id: sql.fragment`t.id` }).rows,
      )
    : 0
  const pending_words = await countOutdatedChunks(
    services,
    visible({ project: sql.fragment`c.project_id`, id: sql.fragment`c.document_id` }).rows,
  )
  return { pending, pending_words }
}

function presentConfig(counts: readonly Pending[], { services }: Pick<Context, 'services'>): object {
  const { configured, model } = embedderOf(services)
  const sum = (of: keyof Pending) => counts.reduce((total, count) => total + count[of], 0)
  return {
    configured,
    provider: model?.provider ?? null,
    model: model?.model ?? null,
    dimensions: model?.dimensions ?? null,
    reindex: { pending: sum('pending'), pending_words: sum('pending_words') },
  }
}

const config = operation({
  id: 'getEmbeddingConfig',
  method: 'get',
  path: '/embeddings/config',
  summary: 'Get embedding model and reindex progress',
  description: 'Progress counts documents and chunks of the projects in which the caller may embed texts.',
  tag,
  action: 'embeddings:CreateEmbeddings',
  about: embeddingKind,
  across: combined(countPending, presentConfig),
  answers: { 200: EmbeddingConfig },
  run: async context => presentConfig([await countPending(context)], context),
})

export const embeddingOperations: Operation[] = [create, config]
