import { createHash } from 'node:crypto'
import { fileKind } from '#content/files/model.ts'
import type { Context } from '#core/api/operation.ts'
import { raise, raiseInvalid } from '#core/base/errors.ts'
import { newId } from '#core/base/ids.ts'
import type { Tx } from '#core/writes/writer.ts'
import { type CasePrincipal, type CaseRow, type EvidenceInput, type EvidenceRow, evidenceKind } from './model.ts'
import { insertEvidence, type NewEvidence } from './store.ts'
import type { TimelineEvent } from './timeline.ts'

const sha256 = (text: string): string => createHash('sha256').update(text).digest('hex')

/** Returns content as hashed: text unchanged, an object as JSON. */
const hashedText = (content: string | object): string =>
  typeof content === 'string' ? content : JSON.stringify(content)

/** Evidence with its hash, where the hash is not derived from content or url. */
export type HashedEvidence = Pick<EvidenceRow, 'name' | 'kind'> &
  Partial<
    Pick<EvidenceRow, 'content' | 'file_id' | 'url' | 'sha256' | 'playbook_execution_id' | 'step_key' | 'generation_id'>
  >

/**
 * Returns evidence input with the current hash of its file.
 * @throws FILE_NOT_FOUND for a file that is not in the project or not readable by the caller, VALIDATION_FAILED for a
 *   file without content
 */
export async function hashInputEvidence(
  { tx, allowed }: Pick<Context, 'tx' | 'allowed'>,
  projectId: string,
  inputs: readonly EvidenceInput[],
): Promise<HashedEvidence[]> {
  const pieces: HashedEvidence[] = []
  for (const { name, kind, content, file_id, url } of inputs) {
    const file = file_id === undefined ? null : await fileKind.reference(tx, file_id, projectId)
    if (file_id !== undefined && !(file && allowed('files:GetFile', { kind: fileKind, row: file })))
      raise('FILE_NOT_FOUND', { meta: { id: file_id } })
    if (file && file.sha256 === null)
      raiseInvalid({ code: 'INVALID_VALUE', path: 'file_id', message: 'refers to a file without content' })
    pieces.push({ name, kind, content, file_id, url, sha256: file?.sha256 ?? undefined })
  }
  return pieces
}

/** Adds evidence to a case. Requires the row lock. Returns the rows and their timeline entries. */
export async function addEvidence(
  tx: Tx,
  { id: case_id, project_id }: Pick<CaseRow, 'id' | 'project_id'>,
  captured_by: CasePrincipal,
  pieces: readonly HashedEvidence[],
): Promise<{ rows: readonly EvidenceRow[]; timelineEvents: TimelineEvent[] }> {
  if (pieces.length === 0) return { rows: [], timelineEvents: [] }
  const evidence = pieces.map((piece): NewEvidence => {
    const { content = null, file_id = null, url = null } = piece
    const { playbook_execution_id = null, step_key = null, generation_id = null } = piece
    const text = content === null ? null : hashedText(content)
    return {
      id: newId(evidenceKind.prefix),
      project_id,
      case_id,
      name: piece.name,
      kind: piece.kind,
      content,
      file_id,
      url,
      sha256: piece.sha256 ?? sha256(text ?? url ?? ''),
      playbook_execution_id,
      step_key,
      generation_id,
      captured_by,
      bytes: text === null ? 0 : Buffer.byteLength(text),
    }
  })
  const rows = await insertEvidence(tx, case_id, evidence)
  const timelineEvents = evidence.map(
    ({ id, name, kind, sha256, playbook_execution_id, step_key }): TimelineEvent => ({
      kind: 'evidence_added',
      data: { evidence_id: id, name, kind, sha256 },
      playbook_execution_id,
      step_key,
    }),
  )
  return { rows, timelineEvents }
}
