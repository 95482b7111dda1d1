import { parse } from '../../core/api/validate.ts'
import { versionedResource } from '../../core/api/versioned-resource.ts'
import { type DeciderRow, deciderKind } from './model.ts'
import { Questions } from './questions.ts'
import { deciderVersions } from './store.ts'

/** Deciders with version history: changed questions create a version, other fields do not. */
export const versionedDeciders = versionedResource<DeciderRow, Pick<DeciderRow, 'questions'>>({
  kind: deciderKind,
  archive: deciderVersions,
  fields: ['questions'],
  read: ({ questions }) => ({ questions: parse(Questions, questions, 'questions') }),
})
