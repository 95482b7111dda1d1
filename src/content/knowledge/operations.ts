import { type Operation, operation } from '#core/api/operation.ts'
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
  across: { requires: 'project' },
  body: SearchInput,
  answers: { 200: SearchAnswer },
  raises: ['AI_PROVIDER_ERROR', 'TOOL_NOT_FOUND', 'QUOTA_EXCEEDED'],
  run: ({ body, caller, project, request, services }) =>
    runSearch(services, { caller, project }, body, { ref: request.id, signal: request.closed }),
})

export const knowledgeOperations: Operation[] = [searchKnowledge]
