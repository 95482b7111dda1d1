import type { Problem } from '../base/errors.ts'
import type { SchemaProblem } from './model.ts'

/** Converts schema violations to API problems; `at` is the path of the value. */
export const wireProblems = (problems: readonly SchemaProblem[], at = ''): Problem[] =>
  problems.map(({ keyword, pointer, message }) => ({
    code: keyword.replace(/[A-Z]/g, letter => `_${letter}`).toUpperCase(),
    path: pointer
      .split('/')
      .slice(1)
      .map(part => part.replaceAll('~1', '/').replaceAll('~0', '~'))
      .reduce((path, part) => (/^\d+$/.test(part) ? `${path}[${part}]` : childPath(path, part)), at),
    message,
  }))

/** Converts like `wireProblems`, but with the path of a missing property instead of its parent's. */
export const wireProblemsAtFields = (problems: readonly SchemaProblem[], at = ''): Problem[] =>
  wireProblems(problems, at).map((problem, index) => {
    const { missing } = problems[index]
    return missing === undefined
      ? problem
      : { ...problem, path: childPath(problem.path, missing), message: 'is required' }
  })

const childPath = (path: string, name: string): string => (path === '' ? name : `${path}.${name}`)
