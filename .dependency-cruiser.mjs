/**
 * Areas in the order in which they may know each other: a later one may import an earlier one, never the reverse. Within an
 * area the same holds for its folders, in the order of the list: `.` stands for the files of the area itself. The folders of
 * one module, such as those of `memory`, are one entry.
 */
export const floors = {
  core: [
    'base',
    'net',
    'secrets',
    'threads',
    'db',
    'queues',
    'writes',
    'work',
    'services',
    'iam',
    'json-schema',
    'expressions',
    'api',
    'resources',
    'modules',
    'invoke',
    'openapi',
    'docs',
    'http',
  ],
  identity: [
    'tokens',
    'sign-in',
    'grants',
    'principals',
    'users',
    'policies',
    'company-sign-in',
    'projects',
    'keys',
    'secrets',
    'console',
    'oauth',
    'saved-views',
  ],
  control: [
    'activity',
    'audit',
    'system',
    'exceptions',
    'usage',
    'webhooks',
    'telemetry',
    'storage',
    'events',
    'quotas',
    'retention',
  ],
  content: [
    '.',
    'storage',
    'schemas',
    'index',
    'extract',
    'files',
    'images',
    'documents',
    'ingestion-rules',
    'ingestion',
    'knowledge',
  ],
  memory: [['entries', 'facts', 'stores', '.']],
  execution: [
    'providers',
    'model-routes',
    'grants',
    'tools',
    'agents',
    'shares',
    'guardrails',
    'generations',
    'chains',
    'deciders',
    'approvals',
    'memory-rules',
  ],
  conversation: ['chats', 'actors', ['dialog', 'sessions'], 'feedback', 'session-notes', 'prepared-replies'],
  automation: [
    'inbound',
    'cases',
    'orchestrations/definition',
    'orchestrations/runs',
    'triggers',
    'workflows/definition',
    'workflows/tasks',
    'playbooks/definition',
    'playbooks/executions',
    'playbooks/exports',
  ],
  evaluation: ['datasets', 'evals', 'eval-runs'],
  formations: ['template', 'records', 'types', 'plans', 'drift', 'export', 'deploys', 'requests', '.'],
  mcp: ['.'],
  protocols: ['.', 'openai', 'a2a', 'ag-ui', 'ui'],
}

const areas = Object.keys(floors)

const packages = (...names) => names.flatMap(name => [`^${name}$`, `(^|/)node_modules/(@types/)?${name}/`])

const downward = areas.map((area, index) => ({
  name: area === 'core' ? 'core-knows-no-module' : `no-upward-import-from-${area}`,
  comment: `src/${area} may import ${index ? `src/{${areas.slice(0, index)}}` : 'nothing else of src'}.`,
  severity: 'error',
  from: { path: `^src/${area}/` },
  to: { path: '^src/', pathNot: `^src/(${areas.slice(0, index + 1).join('|')})/` },
}))

/** The path of the files of a folder of an area, or of several; `.` are the files beside its folders. */
const filesOf = (area, folders) =>
  `^src/${area}/(${[folders]
    .flat()
    .map(folder => (folder === '.' ? '[^/]+$' : `${folder}/`))
    .join('|')})`

const ascending = areas.flatMap(area =>
  floors[area].map((folder, index) => ({
    name: `no-upward-import-from-${area}/${[folder].flat().join('+')}`,
    comment: `src/${area}/${folder} may import ${floors[area].slice(0, index).join(', ') || 'no other folder'} of src/${area}.`,
    severity: 'error',
    from: { path: filesOf(area, folder) },
    to: { path: `^src/${area}/`, pathNot: floors[area].slice(0, index + 1).map(each => filesOf(area, each)) },
  })),
)

export default {
  forbidden: [
    ...downward,
    ...ascending,
    {
      name: 'known-folder',
      comment: 'Every folder of an area is on a floor of the list above.',
      severity: 'error',
      from: {},
      to: {
        path: `^src/(${areas.join('|')})/`,
        pathNot: areas.flatMap(area => floors[area].map(folder => filesOf(area, folder))),
      },
    },
    {
      name: 'known-area',
      comment:
        'Every folder of src is an area of the list above, the command line, or what a machine without anything else runs on.',
      severity: 'error',
      from: {},
      to: { path: '^src/[^/]+/', pathNot: `^src/(${areas.join('|')}|operator|local)/` },
    },
    {
      name: 'command-line-is-on-top',
      comment: 'The command line may use everything; only bin uses it.',
      severity: 'error',
      from: { path: '^(src|jobs)/', pathNot: '^src/operator/' },
      to: { path: '^src/operator/' },
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
      name: 'console-views-are-on-top',
      comment: 'Only the router of the console imports views.',
      severity: 'error',
      from: { path: '^console/src/', pathNot: '^console/src/(router\\.tsx$|views/)' },
      to: { path: '^console/src/views/' },
    },
    {
      name: 'console-views-of-one-area',
      comment: 'A view of the console imports views of its own area only.',
      severity: 'error',
      from: { path: '^console/src/views/([^/]+)/' },
      to: { path: '^console/src/views/', pathNot: '^console/src/views/$1/' },
    },
    {
      name: 'console-view-is-in-an-area',
      comment: 'The views of an area of the navigation or of the service are one folder.',
      severity: 'error',
      from: {},
      to: { path: '^console/src/views/', pathNot: '^console/src/views/[^/]+/[^/]+$' },
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
      name: 'settings-stand-alone',
      comment: 'Settings are declared without what they steer, so that reading them takes no time.',
      severity: 'error',
      from: { path: '^src/.*/settings\\.ts$', pathNot: '^src/operator/' },
      to: { pathNot: ['^src/core/base/setting\\.ts$', ...packages('zod')], dependencyTypesNot: ['core'] },
    },
    {
      name: 'config-loads-no-module',
      comment: 'The configuration is read before modules are loaded, and by commands that load none.',
      severity: 'error',
      from: { path: '^src/(config|settings)\\.ts$' },
      to: {
        path: '^(src|jobs|bin)/',
        pathNot: '/settings\\.ts$|^src/core/(base/|db/database-url\\.ts$|net/(allow-hosts|resolver)\\.ts$)',
      },
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
          '^src/(core/db/(pool|pg-client|pg-driver|commit-piggyback|server-watchdog|notify|notifier|connections)|core/queues/(queue|migrate)|local/postgres)\\.ts$',
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
      name: 'telemetry-in-one-file',
      comment:
        'Only core/base/telemetry makes spans and loads the packages, on demand; the export of metrics has their types.',
      severity: 'error',
      from: { path: '^(src|jobs|bin)/', pathNot: '^src/core/base/telemetry(-metrics)?\\.ts$' },
      to: { path: '^@opentelemetry/|(^|/)node_modules/@opentelemetry/' },
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
      from: { path: '^(src|jobs)/', pathNot: '^src/(operator|local)/' },
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
      from: { path: '^src/', pathNot: '^src/operator/' },
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
