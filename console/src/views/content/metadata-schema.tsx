import { Alert, Button, Group, Stack, Table, Text, TextInput } from '@mantine/core'
import type { MetadataSchema } from '@muster/client'
import {
  auditMetadataSchema,
  deleteMetadataSchema,
  getMetadataSchema,
  updateMetadataSchema,
  validateMetadata,
} from '@muster/client/operations'
import { IconAlertTriangle, IconCircleCheck, IconEdit } from '@tabler/icons-react'
import { useQuery } from '@tanstack/react-query'
import { useIds } from '#address.ts'
import { api } from '#api.ts'
import { FormButton, useAction } from '#components/actions.tsx'
import { useDraft } from '#components/draft.tsx'
import { EntityLink } from '#components/entity-link.tsx'
import type { Read } from '#components/guarded-save.tsx'
import { TableHead } from '#components/list.tsx'
import { Page } from '#components/page.tsx'
import { AddressTabs, Facts, IdLine, Section, type Tab } from '#components/record.tsx'
import { RemoveButton } from '#components/record-page.tsx'
import { type ObjectSchema, SchemaForm, type Values } from '#components/schema-form.tsx'
import { FailureAlert, Loaded } from '#components/states.tsx'
import { visible, When } from '#components/text.tsx'
import { Value } from '#components/value.tsx'
import { isObject } from '#json.ts'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'
import { MetadataSchemaForm, readSchema } from './metadata-schemas.tsx'

const texts = strings.metadataSchemas

/** Violations that an audit returns. */
const MAX_VIOLATIONS = 100

/** A metadata schema: as a form whose entries are checked, and stored metadata that violates it. */
export function MetadataSchemaView() {
  const { schemaId } = useIds()
  const schema = useQuery<Read<MetadataSchema>>({
    queryKey: ['metadata-schema', schemaId],
    queryFn: ({ signal }) => readSchema(schemaId, signal),
  })
  return (
    <Loaded query={schema} operation={getMetadataSchema}>
      {read => <SchemaPage read={read} />}
    </Loaded>
  )
}

function SchemaPage({ read }: { read: Read<MetadataSchema> }) {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const { id, path_prefix, resource_type, schema, updated_at } = read.record
  const tabs: Tab[] = [
    {
      value: 'schema',
      title: texts.schema,
      content: () => (
        <Section title={texts.schema}>
          <Facts
            facts={[
              [texts.for, texts.kinds[resource_type]],
              [texts.folder, visible(path_prefix)],
              [strings.updated, <When key="updated" at={updated_at} />],
            ]}
          />
          <Value value={schema} label={texts.schema} />
          <IdLine id={id} />
        </Section>
      ),
    },
  ]
  if (isAllowed(validateMetadata))
    tabs.push({
      value: 'form',
      title: texts.preview,
      content: () => <Preview key={updated_at} record={read.record} />,
    })
  tabs.push({ value: 'audit', title: texts.audit, content: () => <Audit record={read.record} /> })
  return (
    <Page
      title={path_prefix}
      intro={texts.kinds[resource_type]}
      actions={
        <>
          <RemoveButton
            operation={deleteMetadataSchema}
            ids={{ metadata_schema_id: id }}
            question={texts.deleteText}
            stale={[['metadata-schemas', projectId]]}
            list="metadata-schemas"
          />
          {isAllowed(updateMetadataSchema) && (
            <FormButton
              label={strings.edit}
              leftSection={<IconEdit size={16} />}
              form={close => <MetadataSchemaForm first={read} onDone={close} onCancel={close} />}
            />
          )}
        </>
      }
    >
      <AddressTabs tabs={tabs} />
    </Page>
  )
}

const JSON_METADATA = { properties: { metadata: { type: 'object', title: texts.json } } }

/** The fields of the schema as a form, whose entries are checked as metadata of a path. */
function Preview({ record: { id, project_id, path_prefix, resource_type, schema } }: { record: MetadataSchema }) {
  const fields = isObject(schema.properties) ? (schema as ObjectSchema) : undefined
  const { value: path, setValue: setPath } = useDraft('path', `${path_prefix.replace(/\/$/, '')}/example`)
  const check = useAction({
    run: async (metadata: Values) => validateMetadata(api, { project_id, path, resource_type, metadata }),
  })
  const { data } = check
  return (
    <Section title={texts.preview}>
      <Text c="dimmed">{fields ? texts.previewText : texts.noFields}</Text>
      <SchemaForm
        schema={fields ? { properties: fields.properties } : JSON_METADATA}
        submitLabel={texts.check}
        isPending={check.isPending}
        error={check.error}
        onSubmit={values => check.mutate(fields ? values : ((values.metadata ?? {}) as Values))}
      >
        <TextInput
          label={texts.path}
          description={texts.pathHelp}
          value={path}
          onChange={event => setPath(event.currentTarget.value)}
          required
        />
      </SchemaForm>
      <div role="status">
        {data && (
          <Alert
            color={data.valid ? 'teal' : 'red'}
            icon={data.valid ? <IconCircleCheck /> : <IconAlertTriangle />}
            title={data.valid ? texts.valid : texts.invalid}
          >
            {data.error && <Text size="sm">{visible(data.error)}</Text>}
            {data.metadata_schema_id === null && <Text size="sm">{texts.byNone}</Text>}
            {data.metadata_schema_id !== null && data.metadata_schema_id !== id && (
              <Text size="sm" component="div">
                {texts.byOther}{' '}
                <EntityLink
                  kind="metadata_schema"
                  id={data.metadata_schema_id}
                  projectId={project_id}
                  name={data.path_prefix ?? undefined}
                />
              </Text>
            )}
          </Alert>
        )}
      </div>
    </Section>
  )
}

/** Checks stored metadata, and lists violations of the schema. */
function Audit({ record: { id, project_id, resource_type } }: { record: MetadataSchema }) {
  const audit = useAction({ run: async () => auditMetadataSchema(api, { metadata_schema_id: id }) })
  const { data } = audit
  return (
    <Section title={texts.audit}>
      <Text c="dimmed">{texts.auditText}</Text>
      <Group>
        <Button onClick={() => audit.mutate()} loading={audit.isPending}>
          {texts.run}
        </Button>
      </Group>
      {audit.error && <FailureAlert error={audit.error} />}
      <Stack gap="md" role="status">
        {data && (
          <Text>
            {texts.scanned(data.scanned)} {data.data.length === 0 && texts.allValid}
            {data.data.length >= MAX_VIOLATIONS && texts.most(MAX_VIOLATIONS)}
          </Text>
        )}
      </Stack>
      {data && data.data.length > 0 && (
        <Table verticalSpacing="sm" horizontalSpacing="md" className="rows" aria-label={texts.audit}>
          <TableHead titles={[texts.path, texts.violation]} />
          <Table.Tbody>
            {data.data.map(({ resource_id, path, error }) => (
              <Table.Tr key={resource_id}>
                <Table.Td className="wide">
                  <EntityLink kind={resource_type} id={resource_id} projectId={project_id} name={path} />
                </Table.Td>
                <Table.Td data-title={texts.violation}>
                  <Text inherit>{visible(error)}</Text>
                </Table.Td>
              </Table.Tr>
            ))}
          </Table.Tbody>
        </Table>
      )}
    </Section>
  )
}
