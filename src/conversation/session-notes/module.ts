import { endUserContent } from '#control/retention/erasure.ts'
import { footprints } from '#control/storage/footprint.ts'
import { module } from '#core/modules/module.ts'
import { noteContent } from './erase.ts'
import { sessionNoteKind } from './model.ts'
import { sessionNoteOperations } from './operations.ts'
import { noteFootprint } from './store.ts'

export default module('session notes', {
  tags: { 'Session notes': 'Notes of operators about a session, which neither its end user nor a model reads.' },
  kinds: [sessionNoteKind],
  operations: sessionNoteOperations,
  extensions: [endUserContent.with(noteContent), footprints.with(noteFootprint)],
})
