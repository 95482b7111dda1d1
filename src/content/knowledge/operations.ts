import { type Operation, operation } from '#core/api/operation.ts'
import { readsOf } from '#core/db/replica.ts'
import { documentKind } from '../documents/model.ts'
import { SearchAnswer, SearchInput } from './model.ts'
import { runSearch } from './search.ts'
import { SEARCH_ACTION } from './sources.ts'

const searchKnowledge = operation({
  id: 'searchKnowledge',
  method: 'post',
  path: '/knowledge/search',
  summary: 'Search documents and memories',
  description:
    'Results are ranked by reciprocal rank fusion of a vector and a lexical channel. Without a query, rows that match the filters are returned, oldest first. `rerank` requires `tools:CallTool` on the tool.',
  tag: 'Knowledge',
  action: SEARCH_ACTION,
  alsoActions: ['tools:CallTool'],
  about: documentKind,
  reads: true,
  replica: true,
  across: { requires: 'project' },
  body: SearchInput,
  answers: { 200: SearchAnswer },
  raises: ['AI_PROVIDER_ERROR', 'TOOL_NOT_FOUND', 'QUOTA_EXCEEDED'],
  run: context => {
    const { body, caller, project, request, services } = context
    const purpose = { ref: request.id, signal: request.closed }
    return runSearch(services, { caller, project }, body, purpose, readsOf(context))
  },
})

export const knowledgeOperations: Operation[] = [searchKnowledge]
