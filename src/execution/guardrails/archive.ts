import { versionArchive } from '../../core/api/version-archive.ts'
import { versioned } from '../../core/api/versioned.ts'
import { announce } from '../../core/db/notified-cache.ts'
import { checkDocument } from './document.ts'
import { guardrailChannel } from './live.ts'
import { type GuardrailDocument, type GuardrailRow, GuardrailVersion, guardrailKind } from './model.ts'

export const guardrailVersions = versionArchive({
  table: 'guardrail_versions',
  owner: 'guardrail_id',
  prefix: 'guard_ver',
  record: GuardrailVersion,
})

/** Guardrails as they are written: another document is the next version. */
export const versionedGuardrails = versioned<GuardrailRow, Pick<GuardrailRow, 'document'>>({
  kind: guardrailKind,
  archive: guardrailVersions,
  fields: ['document'],
  check: (_context, _project, { document }) => checkDocument(document as GuardrailDocument),
  changed: (tx, { id }) => announce(tx, guardrailChannel, id),
})
