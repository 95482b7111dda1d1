import { metadataBag } from '../core/api/metadata.ts'

/** Metadata of files, documents and ingestion rules. */
export const MetadataBag = metadataBag(64, 16)
