import { z } from 'zod'
import { projectField } from '#core/api/record.ts'
import { TagInput } from '#core/api/tags.ts'
import { chunkFields } from '../index/chunks/model.ts'
import { ContentMetadata } from '../metadata.ts'
import { WritableDirectory } from '../paths.ts'

export const IngestInput = z
  .strictObject({
    project_id: projectField,
    file_id: z.string().min(1).max(255).describe('ID of the file to ingest; a file has at most one document'),
    path_prefix: WritableDirectory.nullish().describe(
      'Directory to move the file to. By default the file is not moved.',
    ),
    title: z.string().max(512).nullish().describe('Title of the document. Default the filename.'),
    tags: TagInput.optional().describe('Tags of the document'),
    metadata: ContentMetadata.nullable()
      .optional()
      .describe('Custom metadata, validated by the metadata schema of the path'),
    ...chunkFields,
  })
  .meta({ id: 'IngestInput' })
export type IngestInput = z.output<typeof IngestInput>

export const ReingestInput = z.strictObject(chunkFields).meta({ id: 'ReingestInput' })
