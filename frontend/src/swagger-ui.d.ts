// What we use of swagger-ui-dist, which has no types of its own.
declare module "swagger-ui-dist/swagger-ui-es-bundle.js" {
  interface Options {
    dom_id: string;
    url: string;
    deepLinking: boolean;
    persistAuthorization: boolean;
    validatorUrl: null;
  }
  const SwaggerUI: (options: Options) => unknown;
  export default SwaggerUI;
}
