import type { Config } from '#core/base/config.ts'

/** Draft of client metadata documents that this code implements. */
export const METADATA_DOCUMENT_DRAFT = 'draft-02'

/**
 * Checks that the library implements the same draft of metadata documents, which a minor release may change. Reads only
 * the file of the library that lists the drafts (1 ms); the library itself is loaded at the first request.
 * @throws Error for another draft, which prevents the start
 */
export async function checkDraft({ OAUTH_CIMD_ENABLED }: Pick<Config, 'OAUTH_CIMD_ENABLED'>): Promise<void> {
  if (!OAUTH_CIMD_ENABLED) return
  const { EXPERIMENTS } = (await import('oidc-provider/lib/helpers/features.js' as string)) as {
    EXPERIMENTS: Map<string, { version: string }>
  }
  const draft = EXPERIMENTS.get('clientIdMetadataDocument')?.version
  if (draft !== METADATA_DOCUMENT_DRAFT)
    throw new Error(
      `oidc-provider implements ${draft ?? 'no draft'} of client metadata documents, not ${METADATA_DOCUMENT_DRAFT}; set OAUTH_CIMD_ENABLED=false or install the release listed in package.json`,
    )
}
