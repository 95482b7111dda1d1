import { parse } from '../../core/api/validate.ts'
import { versioned } from '../../core/api/versioned.ts'
import { type DeciderRow, deciderKind } from './model.ts'
import { Questions } from './questions.ts'
import { deciderVersions } from './store.ts'

/** Deciders as they are written: other questions are the next version, nothing else is. */
export const versionedDeciders = versioned<DeciderRow, Pick<DeciderRow, 'questions'>>({
  kind: deciderKind,
  archive: deciderVersions,
  fields: ['questions'],
  read: ({ questions }) => ({ questions: parse(Questions, questions, 'questions') }),
})
