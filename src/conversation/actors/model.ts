import { z } from 'zod'
import { kind } from '../../core/api/kind.ts'
import { MetadataBag } from '../../core/api/metadata.ts'
import { record } from '../../core/api/record.ts'
import { TagInput } from '../../core/api/tags.ts'

export const Metadata = z.record(z.string(), z.unknown())

/** Names: 1 to 255 characters after trimming. */
export const Name = z.string().trim().min(1).max(255)

export const Actor = record(
  'Actor',
  {
    name: z.string(),
    external_id: z.string().nullable(),
    instructions: z.string().nullable(),
    agent_id: z.string().nullable(),
    chat_id: z.string().nullable(),
    metadata: Metadata.nullable(),
  },
  { tags: true },
)

const externalId = z
  .string()
  .min(1)
  .max(255)
  .meta({ description: 'Sent as a context header with every tool call of session turns: no personal data here.' })
const instructions = z.string().max(65_536)
const link = z.string().min(1).max(255)

export const ActorInput = z
  .strictObject({
    project_id: z.string().optional(),
    name: Name,
    external_id: externalId.nullish(),
    instructions: instructions.nullish(),
    agent_id: link.nullish(),
    chat_id: link.nullish(),
    metadata: MetadataBag.nullish(),
  })
  .meta({ id: 'ActorInput' })

export const ActorPatch = z
  .strictObject({
    name: Name.optional(),
    external_id: externalId.optional(),
    instructions: instructions.nullish(),
    agent_id: link.nullish(),
    chat_id: link.nullish(),
    metadata: MetadataBag.nullish(),
    tags: TagInput.optional(),
  })
  .meta({ id: 'ActorPatch' })

export const ActorMerge = z.strictObject({ into_actor_id: z.string() }).meta({ id: 'ActorMerge' })

/** A row of actors; its columns are the record. */
export type ActorRow = z.infer<typeof Actor>

export const actorKind = kind({
  name: 'actor',
  prefix: 'actor',
  table: 'actors',
  missing: 'ACTOR_NOT_FOUND',
  references: [{ kind: 'agent', column: 'agent_id', on_delete: 'null' }],
  record: Actor,
  events: ['created', 'updated', 'deleted'],
})
