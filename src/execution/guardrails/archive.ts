import { versionArchive } from '../../core/api/version-archive.ts'
import { versionedResource } from '../../core/api/versioned-resource.ts'
import { invalidateOnCommit } from '../../core/db/notified-cache.ts'
import { checkGuardrailDocument } from './document.ts'
import { guardrailChannel } from './guardrail-cache.ts'
import { type GuardrailDocument, type GuardrailRow, GuardrailVersion, guardrailKind } from './model.ts'

export const guardrailVersions = versionArchive({
  table: 'guardrail_versions',
  owner: 'guardrail_id',
  prefix: 'guard_ver',
  record: GuardrailVersion,
})

/** Guardrails with version history: a changed document creates a version. */
export const versionedGuardrails = versionedResource<GuardrailRow, Pick<GuardrailRow, 'document'>>({
  kind: guardrailKind,
  archive: guardrailVersions,
  fields: ['document'],
  check: (_context, _project, { document }) => checkGuardrailDocument(document as GuardrailDocument),
  changed: (tx, { id }) => invalidateOnCommit(tx, guardrailChannel, id),
})
