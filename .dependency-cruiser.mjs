/** Areas in the order in which they may know each other: a later one may import an earlier one, never the reverse. */
const areas = [
  'core',
  'identity',
  'control',
  'content',
  'memory',
  'execution',
  'conversation',
  'automation',
  'evaluation',
  'formations',
  'mcp',
  'protocols',
]

const packages = (...names) => names.flatMap(name => [`^${name}$`, `(^|/)node_modules/(@types/)?${name}/`])

const downward = areas.map((area, index) => ({
  name: area === 'core' ? 'core-knows-no-module' : `no-upward-import-from-${area}`,
  comment: `src/${area} may import ${index ? `src/{${areas.slice(0, index)}}` : 'nothing else of src'} and src/config.ts.`,
  severity: 'error',
  from: { path: `^src/${area}/` },
  to: { path: '^src/', pathNot: `^src/(((${areas.slice(0, index + 1).join('|')})/)|config\\.ts$)` },
}))

export default {
  forbidden: [
    ...downward,
    {
      name: 'known-area',
      comment:
        'Every folder of src is an area of the list above, the command line, or what a machine without anything else runs on.',
      severity: 'error',
      from: {},
      to: { path: '^src/[^/]+/', pathNot: `^src/(${areas.join('|')}|cli|local)/` },
    },
    {
      name: 'command-line-is-on-top',
      comment: 'The command line may use everything; only bin uses it.',
      severity: 'error',
      from: { path: '^(src|jobs)/', pathNot: '^src/cli/' },
      to: { path: '^src/cli/' },
    },
    {
      name: 'client-stands-alone',
      comment: 'The client is a program of its own, which has only what every run time has.',
      severity: 'error',
      from: { path: '^client/src/' },
      to: { pathNot: '^client/src/' },
    },
    {
      name: 'command-line-is-a-client',
      comment: 'Commands of the API know the client and what it was built from, so they start without the application.',
      severity: 'error',
      from: { path: '^cli/src/' },
      to: { path: '^(src|jobs|bin|test|scripts)/' },
    },
    {
      name: 'client-build-reads-the-description',
      comment: 'The generator of the client reads the published description, not the application.',
      severity: 'error',
      from: { path: '^client/build/' },
      to: { path: '^(src|jobs|bin|test|scripts)/' },
    },
    {
      name: 'console-is-a-client',
      comment: 'The console knows the service by its API: it uses its own files, packages and the client.',
      severity: 'error',
      from: { path: '^console/src/' },
      to: { path: '^(src|jobs|bin|test|scripts|client/(src|build))/' },
    },
    {
      name: 'no-client-in-the-application',
      comment: 'Web and workers start where nothing was built.',
      severity: 'error',
      from: { path: '^(src|jobs)/' },
      to: { path: '^(client|cli|console|scripts)/' },
    },
    {
      name: 'no-cycle',
      comment: 'Modules that need each other are one module.',
      severity: 'error',
      from: {},
      to: { circular: true },
    },
    {
      name: 'config-stands-alone',
      comment: 'Everything reads the configuration; it reads the environment only.',
      severity: 'error',
      from: { path: '^src/config\\.ts$' },
      to: { path: '^(src|jobs|bin)/' },
    },
    {
      name: 'egress-only',
      comment: 'Only core/net/egress opens a socket to an address that a caller gave.',
      severity: 'error',
      from: { path: '^(src|jobs|bin)/', pathNot: ['^src/core/net/(egress|untimed-fetch)\\.ts$', '^src/local/'] },
      to: { path: packages('undici') },
    },
    {
      name: 'database-only-in-core',
      comment: 'Connections and queues are built in one place.',
      severity: 'error',
      from: {
        path: '^(src|jobs)/',
        pathNot:
          '^src/(core/db/(pool|pg-client|pg-driver|commit-piggyback|server-watchdog|notify|notifier|connections|migrate)|core/jobs/queue|local/postgres)\\.ts$',
      },
      to: { path: packages('pg', 'pg-boss') },
    },
    {
      name: 'schemas-run-in-threads',
      comment: 'What a caller wrote as a JSON Schema or a long expression runs in a thread, never on the event loop.',
      severity: 'error',
      from: { path: '^(src|jobs|bin)/', pathNot: '^src/core/json-schema/(task|validate)\\.ts$' },
      to: {
        path: [
          '^src/core/(json-schema/(task|validate)|expressions/task)\\.ts$',
          ...packages('ajv', 'ajv-formats', 're2js'),
        ],
        dependencyTypesNot: ['type-only'],
      },
    },
    {
      name: 'double-stands-alone',
      comment: 'The model double knows nothing of the application it is used against.',
      severity: 'error',
      from: { path: '^src/local/double/' },
      to: { path: '^(src|jobs|bin|test)/', pathNot: '^src/local/double/' },
    },
    {
      name: 'local-is-not-the-application',
      comment: 'Only the command line and tests use the embedded PostgreSQL and the model double.',
      severity: 'error',
      from: { path: '^(src|jobs)/', pathNot: '^src/(cli|local)/' },
      to: { path: '^src/local/' },
    },
    {
      name: 'no-test-in-the-application',
      severity: 'error',
      from: { path: '^(src|jobs|bin)/' },
      to: { path: '^test/' },
    },
    {
      name: 'entries-are-on-top',
      comment: 'A module names its handlers; which process runs them is known to jobs and bin alone.',
      severity: 'error',
      from: { path: '^src/', pathNot: '^src/cli/' },
      to: { path: '^(jobs|bin)/' },
    },
    {
      name: 'no-unresolved-import',
      comment:
        'An import that cannot be followed would pass every other rule. The build of the console makes modules of fields.',
      severity: 'error',
      from: {},
      to: { couldNotResolve: true, pathNot: '^fields:' },
    },
    {
      name: 'no-development-package-in-the-application',
      severity: 'error',
      from: { path: '^(src|jobs|bin)/' },
      to: { dependencyTypes: ['npm-dev'], dependencyTypesNot: ['type-only'] },
    },
  ],
  options: {
    doNotFollow: { path: 'node_modules' },
    tsPreCompilationDeps: true,
    tsConfig: { fileName: 'tsconfig.json' },
    enhancedResolveOptions: {
      exportsFields: ['exports'],
      conditionNames: ['import', 'node', 'default', 'types'],
      extensions: ['.ts', '.js', '.mjs', '.cjs', '.json'],
    },
  },
}
