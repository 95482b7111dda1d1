import type { Config } from '../../config.ts'

/** The draft of client metadata documents that our rules for them were written for. */
export const METADATA_DOCUMENT_DRAFT = 'draft-02'

/**
 * Fails the start of a process whose library follows another draft of metadata documents, which a minor release may do. Reads
 * the one file of the library that names the drafts (1 ms): the library itself is loaded at the first request.
 */
export async function checkDraft({ OAUTH_CIMD_ENABLED }: Pick<Config, 'OAUTH_CIMD_ENABLED'>): Promise<void> {
  if (!OAUTH_CIMD_ENABLED) return
  const { EXPERIMENTS } = (await import('oidc-provider/lib/helpers/features.js' as string)) as {
    EXPERIMENTS: Map<string, { version: string }>
  }
  const draft = EXPERIMENTS.get('clientIdMetadataDocument')?.version
  if (draft !== METADATA_DOCUMENT_DRAFT)
    throw new Error(
      `oidc-provider follows ${draft ?? 'no draft'} of client metadata documents, not ${METADATA_DOCUMENT_DRAFT}; set OAUTH_CIMD_ENABLED=false, or install the release that package.json names`,
    )
}
