import { operationTools } from '#mcp/registry.ts'
import { rankTools } from '#mcp/search.ts'
import { items, repeated } from '../inputs.ts'
import { costCase } from '../measure.ts'

export default [
  costCase({
    name: 'mcp/search.ts rankTools',
    limit: 200,
    bound: 'characters of a query',
    inputs: {
      'different words': n => items(at => at.toString(36))(n / 3).join(' '),
      'one long word': repeated('s'),
      synonyms: repeated('make remove show '),
    },
    run: query => rankTools(query, operationTools()),
  }),
]
