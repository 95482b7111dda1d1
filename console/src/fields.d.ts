/** The fields of an operation's body, from the description of the API. */
declare module 'fields:*' {
  const schema: import('./components/schema-form.tsx').ObjectSchema
  export default schema
}
