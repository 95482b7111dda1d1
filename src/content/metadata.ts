import { metadataBag } from '../core/metadata.ts'

/** Metadata of files, documents and ingestion rules (content, 1.2). */
export const MetadataBag = metadataBag(64, 16)
