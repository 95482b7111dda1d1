import type { Problem } from '../api/errors.ts'
import type { SchemaProblem } from './model.ts'

/** Where a value breaks a schema, as the wire's problems; `at` is the path of the value. */
export const wireProblems = (problems: readonly SchemaProblem[], at = ''): Problem[] =>
  problems.map(({ keyword, pointer, message }) => ({
    code: keyword.replace(/[A-Z]/g, letter => `_${letter}`).toUpperCase(),
    path: pointer
      .split('/')
      .slice(1)
      .map(part => part.replaceAll('~1', '/').replaceAll('~0', '~'))
      .reduce((path, part) => (/^\d+$/.test(part) ? `${path}[${part}]` : below(path, part)), at),
    message,
  }))

/** The same, with what is missing at its own path rather than at that of the object which lacks it. */
export const wireProblemsAtFields = (problems: readonly SchemaProblem[], at = ''): Problem[] =>
  wireProblems(problems, at).map((problem, index) => {
    const { missing } = problems[index]
    return missing === undefined ? problem : { ...problem, path: below(problem.path, missing), message: 'is required' }
  })

const below = (path: string, name: string): string => (path === '' ? name : `${path}.${name}`)
