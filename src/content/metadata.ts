import { metadataBag } from '#core/api/metadata.ts'

/** Metadata of files, documents and ingestion rules. */
export const ContentMetadata = metadataBag(64, 16)
