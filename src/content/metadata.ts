import { metadataBag } from '../core/api/metadata.ts'

/** Metadata of files, documents and ingestion rules (content, 1.2). */
export const MetadataBag = metadataBag(64, 16)
