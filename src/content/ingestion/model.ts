import { z } from 'zod'
import { TagInput } from '../../core/api/tags.ts'
import { chunkFields } from '../chunks/model.ts'
import { MetadataBag } from '../metadata.ts'
import { WritableDirectory } from '../paths.ts'

export const IngestInput = z
  .strictObject({
    project_id: z.string().optional(),
    file_id: z.string().min(1).max(255),
    path_prefix: WritableDirectory.nullish().describe('Directory that the file moves to; without it the file stays'),
    title: z.string().max(512).nullish().describe("Default: the file's name"),
    tags: TagInput.optional(),
    metadata: MetadataBag.nullable().optional(),
    ...chunkFields,
  })
  .meta({ id: 'IngestInput' })
export type IngestInput = z.output<typeof IngestInput>

export const ReingestInput = z.strictObject(chunkFields).meta({ id: 'ReingestInput' })
